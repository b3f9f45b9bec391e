//! Hosts of the provider `ssh` as network namespaces: a real sshd each, with processes, a hostname, a boot id and a home of its own, and a
//! cable that can be pulled. Needs root.

use crate::process;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub struct Hosts {
    place: tempfile::TempDir,
    hosts: Vec<Host>,
}

pub struct Host {
    folder: PathBuf,
    pub name: String,
    space: String,
    cable: String,
    /// Of the control plane's end of the cable.
    pub near: String,
    pub address: String,
    home: PathBuf,
    boots: u32,
    up: Option<Child>,
}

impl Hosts {
    /// One host for each home; hosts of the same home share it. None where this user may not make them.
    pub fn start(homes: &[&str]) -> Option<Hosts> {
        if !nix::unistd::geteuid().is_root() {
            crate::skip::skip("hosts", "only root can make network namespaces");
            return None;
        }
        let place = tempfile::Builder::new().prefix("hosts").tempdir().unwrap();
        let _ = std::fs::create_dir_all("/run/sshd");
        for key in ["host", "id"] {
            done(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(place.path().join(key)));
        }
        let mut hosts = Hosts { place, hosts: Vec::new() };
        for (number, home) in homes.iter().enumerate() {
            let host = Host::new(hosts.place.path(), number as u32, home);
            hosts.hosts.push(host);
        }
        Some(hosts)
    }

    pub fn get(&mut self, number: usize) -> &mut Host {
        &mut self.hosts[number]
    }

    pub fn count(&self) -> usize {
        self.hosts.len()
    }

    /// What a command that adds them all is told: hosts, and the key to log in with.
    pub fn targets(&self) -> (Vec<String>, String) {
        let identity = self.place.path().join("id").display().to_string();
        (self.hosts.iter().map(|host| format!("root@{}", host.address)).collect(), identity)
    }

    /// A key that none of them knows.
    pub fn another_key(&self) -> String {
        let key = self.place.path().join("another");
        done(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key));
        key.display().to_string()
    }

    /// From its next start on a host shows another key. The same again shows the first one.
    pub fn change_host_key(&self) {
        let at = |name: &str| self.place.path().join(name);
        if !at("other").exists() {
            done(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at("other")));
        }
        for end in ["", ".pub"] {
            let [one, other, between] = ["host", "other", "between"].map(|name| at(&format!("{name}{end}")));
            for (from, to) in [(&one, &between), (&other, &one), (&between, &other)] {
                std::fs::rename(from, to).unwrap();
            }
        }
    }

    /// A folder of so few bytes that hosts have from their next start on.
    pub fn small_folder(&self) -> Mounted {
        let folder = self.place.path().join("small");
        std::fs::create_dir(&folder).unwrap();
        done(Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&folder));
        Mounted(folder)
    }

    /// The settings of a provider that has them all.
    pub fn settings(&self, more: &str) -> String {
        let names: Vec<String> = self.hosts.iter().map(|host| format!("\"root@{}\"", host.address)).collect();
        format!(
            "[providers.lab]\nkind = \"ssh\"\nhosts = [{}]\nidentity = \"{}\"\naccept_host_key = true\n{more}",
            names.join(", "),
            self.place.path().join("id").display()
        )
    }
}

impl Host {
    fn new(place: &Path, number: u32, home: &str) -> Host {
        // Sixteen addresses for each test process, four for each host: no test meets another's.
        let first = std::process::id() % 4096 * 16 + number * 4;
        let address = |n: u32| format!("10.200.{}.{}", (first + n) / 256, (first + n) % 256);
        let (space, cable) =
            (format!("e2e{}x{number}", std::process::id()), format!("v{}x{number}", std::process::id()));
        let (near, address) = (address(1), address(2));
        ip(&["netns", "add", &space]);
        ip(&["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &space]);
        ip(&["addr", "add", &format!("{near}/30"), "dev", &cable]);
        ip(&["link", "set", &cable, "up"]);
        ip(&["-n", &space, "addr", "add", &format!("{address}/30"), "dev", "eth0"]);
        ip(&["-n", &space, "link", "set", "lo", "up"]);
        ip(&["-n", &space, "link", "set", "eth0", "up"]);
        let home = place.join(home);
        std::fs::create_dir_all(&home).unwrap();
        let name = format!("host{number}");
        let mut host = Host { folder: place.to_owned(), name, space, cable, near, address, home, boots: 0, up: None };
        host.boot();
        host
    }

    /// Every process there ends at once, and the host comes back with another boot id.
    pub fn reboot(&mut self) {
        self.shut_down();
        self.boot();
    }

    fn shut_down(&mut self) {
        if let Some(mut up) = self.up.take() {
            // All processes of its namespace end with the first of them.
            up.kill().unwrap();
            up.wait().unwrap();
        }
    }

    fn boot(&mut self) {
        self.boots += 1;
        let at = |name: &str| self.folder.join(format!("{}.{name}", self.name));
        std::fs::write(at("boot_id"), format!("{:08x}-0000-0000-0000-{:012x}\n", std::process::id(), self.boots))
            .unwrap();
        let shared = |name: &str| self.folder.join(name).display().to_string();
        let config = format!(
            "Port 22\nListenAddress {}\nHostKey {}\nPidFile none\nAuthorizedKeysFile {}\nUsePAM no\nStrictModes no\n\
             PasswordAuthentication no\nAllowTcpForwarding no\nAllowStreamLocalForwarding no\nMaxStartups 200\n\
             SetEnv PATH={}:/usr/local/bin:/usr/bin:/bin\n",
            self.address,
            shared("host"),
            shared("id.pub"),
            at("bin").display()
        );
        std::fs::write(at("sshd"), config).unwrap();
        let script = "hostname \"$1\" && mount --bind \"$2\" /proc/sys/kernel/random/boot_id && mount --bind \"$3\" /root && \
                      cd / && exec /usr/sbin/sshd -D -e -f \"$4\"";
        let mut sshd = Command::new("ip");
        sshd.args(["netns", "exec", &self.space, "unshare", "--mount", "--pid", "--uts", "--fork", "--mount-proc"])
            .args(["--kill-child", "sh", "-c", script, "sh", &self.name])
            .args([&at("boot_id"), &self.home, &at("sshd")])
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut sshd = sshd.spawn().unwrap();
        let mut said = BufReader::new(sshd.stderr.take().unwrap());
        let (mut line, mut all) = (String::new(), String::new());
        while !line.contains("Server listening on") {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "{} does not come up: {all}", self.name);
            all.push_str(&line);
        }
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        self.up = Some(sshd);
    }

    /// A program that is found there before any other of its name; its file.
    pub fn program(&self, name: &str, script: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = self.folder.join(format!("{}.bin", self.name));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    /// From now on what it sends comes at 50 kB/s.
    pub fn slow(&self) {
        let limit = ["tbf", "rate", "400kbit", "burst", "32kbit", "latency", "2s"];
        ip(&[["netns", "exec", &self.space, "tc", "qdisc", "add", "dev", "eth0", "root"].as_slice(), &limit].concat());
    }

    pub fn cut_off(&self) {
        ip(&["link", "set", &self.cable, "down"]);
    }

    pub fn connect(&self) {
        ip(&["link", "set", &self.cable, "up"]);
    }

    /// Whatever is in its home.
    pub fn left(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.home).unwrap().flatten().map(|entry| entry.path()).collect()
    }

    /// Folders of machines below its home, of any host that shares it.
    pub fn machines(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for control_plane in folders(&self.home.join(".repl")).into_iter().filter(|path| !path.ends_with("bin")) {
            for host in folders(&control_plane) {
                found.extend(folders(&host));
            }
        }
        found
    }
}

fn folders(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let visible = |path: &PathBuf| path.is_dir() && !path.file_name().unwrap().to_string_lossy().starts_with('.');
    entries.map(|entry| entry.path()).filter(visible).collect()
}

fn ip(words: &[&str]) {
    done(Command::new("ip").args(words));
}

fn done(command: &mut Command) {
    let ended = process::end_of(command.stdin(Stdio::null()));
    assert_eq!(ended.code, 0, "{command:?}: {ended}");
}

/// A file system that is mounted for as long as this lives.
pub struct Mounted(pub PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.shut_down();
        // The cable goes with the namespace it ends in.
        let _ = Command::new("ip").args(["netns", "delete", &self.space]).status();
    }
}
