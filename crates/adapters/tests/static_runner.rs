//! The binary of `scripts/build-runner`, under a root where nothing else is: no libc, no shell, no users, no resolver. What the provider
//! `ssh` asks of it there is answered, and the runner that it starts works. Needs root and the binary, which no stage builds.

#[path = "../../testkit/tests/support/skip.rs"]
mod skip;

use adapters::conformance::{CONTROL_ID, order};
use adapters::ssh::remote::{self, Ask, Deed};
use model::spec::Resources;
use serde_json::{Value, json};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

struct Root(tempfile::TempDir);

impl Root {
    /// None where it cannot be tried.
    fn new() -> Option<Root> {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/repl-static");
        let binary = std::env::var_os("REPL_RUNNER_BINARY").map_or(built, PathBuf::from);
        if !nix::unistd::geteuid().is_root() || !binary.is_file() {
            let why = format!("it needs root and {}, which scripts/build-runner makes", binary.display());
            skip::skip("static", &why);
            return None;
        }
        let root = Root(tempfile::tempdir().unwrap());
        fs::copy(binary, root.at("repl")).unwrap();
        for folder in ["proc", "dev", "home"] {
            fs::create_dir(root.at(folder)).unwrap();
        }
        done(Command::new("mount").args(["-t", "proc", "proc"]).arg(root.at("proc")));
        done(Command::new("mknod").arg(root.at("dev/null")).args(["c", "1", "3"]));
        Some(root)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn ask(&self, deed: Deed) -> Value {
        let ask = Ask {
            host: "box".to_owned(),
            mark: "m".to_owned(),
            dir: Some("/home/r".into()),
            slots: 1,
            deed: deed.clone(),
        };
        let mut repl = Command::new("chroot");
        repl.arg(self.0.path())
            .args(["/repl", "runner", "host", "/repl"])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin");
        let mut repl = repl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        repl.stdin.take().unwrap().write_all(&serde_json::to_vec(&ask).unwrap()).unwrap();
        let ended = repl.wait_with_output().unwrap();
        assert!(ended.status.success(), "{deed:?}: {ended:?}");
        remote::heard(&ended.stdout).expect("an answer").unwrap_or_else(|trouble| panic!("{deed:?}: {trouble}"))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.at("proc")).status();
    }
}

fn done(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

#[test]
fn the_static_binary_works_where_nothing_else_is() {
    let Some(root) = Root::new() else { return };
    let look =
        |control_url: &str| Deed::Look { control_id: CONTROL_ID.to_owned(), control_url: control_url.to_owned() };
    assert_eq!(root.ask(look("relay:"))["architecture"], std::env::consts::ARCH);
    root.ask(look("http://nowhere.invalid:1")); // there is no resolver: its runner would be relayed
    let (boot, nonce) = (order(1).boot, order(1).boot.nonce);
    let name = boot.name.clone();
    let inspect = || Deed::Inspect { name: name.clone(), nonce: nonce.clone() };
    let made = root.ask(Deed::Spawn { boot: Box::new(boot), resources: Resources::default() });
    assert_eq!(made, json!(name));
    while root.ask(inspect()) != "alive" {
        let log = fs::read_to_string(root.at("home/r").join(CONTROL_ID).join("box").join(&name).join("runner.log"));
        assert!(!log.is_ok_and(|log| log.contains("could not serve")), "its runner does not start");
    }
    root.ask(Deed::Terminate { name: name.clone(), nonce: nonce.clone() });
    assert_eq!(root.ask(inspect()), "gone");
    root.ask(Deed::Forget { name: name.clone() });
    root.ask(Deed::Leave { control_id: CONTROL_ID.to_owned() });
    assert!(!root.at("home/r").exists(), "nothing stays");
}
