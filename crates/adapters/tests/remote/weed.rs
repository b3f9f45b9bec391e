//! A SeaweedFS of a test's own: a real store that speaks S3, checks signatures and obeys conditions. It ends with the test.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const VERSION: &str = "4.48";
const STARTS_WITHIN: Duration = Duration::from_secs(60);
pub const BUCKET: &str = "remotes";
pub const KEY: &str = "test";
pub const SECRET: &str = "testsecret";

pub struct Weed {
    process: Child,
    pub endpoint: String,
    _folder: TempDir,
}

impl Drop for Weed {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// `$WEED`, or where `scripts/test tools` puts it. A test that cannot find it fails: it does not pass without having looked.
fn program() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let installed = cache.map(|cache| cache.join(format!("remuda-tests/seaweedfs-{VERSION}/bin/weed")));
    let found = std::env::var_os("WEED").map(PathBuf::from).into_iter().chain(installed).find(|file| file.is_file());
    found.expect("SeaweedFS is not installed: ./scripts/test tools")
}

impl Weed {
    pub fn start() -> Weed {
        let folder = tempfile::tempdir().unwrap();
        // Held together, so that they are different.
        let held: Vec<TcpListener> = (0..8).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = held.iter().map(|port| port.local_addr().unwrap().port()).collect();
        drop(held);
        let config = folder.path().join("s3.json");
        let identity = format!(
            r#"{{"identities":[{{"name":"admin","credentials":[{{"accessKey":"{KEY}","secretKey":"{SECRET}"}}],
               "actions":["Admin","Read","List","Tagging","Write"]}}]}}"#
        );
        std::fs::write(&config, identity).unwrap();
        let mut command = Command::new(program());
        command.args([
            "server",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-filer",
            "-s3",
            "-master.volumeSizeLimitMB=64",
        ]);
        command.args(["-volume.max=20", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
        command.arg(format!("-dir={}", folder.path().display())).arg(format!("-s3.config={}", config.display()));
        let flags =
            ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"];
        let flags = flags.into_iter().chain(["s3.port", "s3.port.grpc"]);
        command.args(flags.zip(&ports).map(|(flag, port)| format!("-{flag}={port}")));
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: prctl is async-signal-safe; with this the store ends with a test that is killed.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let weed = Weed {
            process: command.spawn().unwrap(),
            endpoint: format!("http://127.0.0.1:{}", ports[6]),
            _folder: folder,
        };
        weed.answers(ports[6], "GET /healthz");
        // A folder of the filer is a bucket.
        weed.answers(ports[4], &format!("POST /buckets/{BUCKET}/"));
        weed
    }

    /// Asks until the answer is a good one.
    fn answers(&self, port: u16, request: &str) {
        let until = Instant::now() + STARTS_WITHIN;
        while Instant::now() < until {
            let answered = TcpStream::connect(("127.0.0.1", port)).and_then(|mut stream| {
                write!(stream, "{request} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer)?;
                Ok(answer.starts_with("HTTP/1.1 2"))
            });
            if answered.is_ok_and(|good| good) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("SeaweedFS did not answer {request}");
    }
}
