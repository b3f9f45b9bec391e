//! A real sshd of this user on a port of its own, and a provider whose only host it is. Everything of it is in a folder of the test.

use super::{Local, local_at, script};
use adapters::conformance::{CONTROL_ID, Deed, MACHINES, Subject};
use adapters::ssh::{SshWay, Target};
use adapters::{Provider, SshProvider, SshSettings};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub struct Sshd {
    daemon: Child,
    pub port: u16,
    /// The key that it lets in.
    pub identity: PathBuf,
    /// A file that has its host key.
    pub known_hosts: PathBuf,
}

impl Sshd {
    /// In this folder; with a host key of its own.
    pub fn start(folder: &Path) -> Sshd {
        fs::create_dir_all(folder).unwrap();
        // Where a system's own sshd has never run, root's has nowhere to lock itself into.
        let _ = fs::create_dir_all("/run/sshd");
        let (host_key, identity) = (folder.join("host"), folder.join("id"));
        for key in [&host_key, &identity] {
            if !key.exists() {
                let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(key).status();
                assert!(made.unwrap().success());
            }
        }
        loop {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if let Some(daemon) = listen(folder, port) {
                let public = fs::read_to_string(host_key.with_extension("pub")).unwrap();
                let known_hosts = folder.join("known_hosts");
                fs::write(&known_hosts, format!("[127.0.0.1]:{port} {public}")).unwrap();
                return Sshd { daemon, port, identity, known_hosts };
            }
        }
    }

    pub fn host(&self) -> Target {
        Target::parse(&format!("127.0.0.1:{}", self.port)).unwrap()
    }

    /// The way that works.
    pub fn way(&self, dir: &Path) -> SshWay {
        SshWay {
            identity: Some(self.identity.clone()),
            known_hosts: Some(self.known_hosts.clone()),
            accepted: None,
            dir: Some(dir.to_str().unwrap().to_owned()),
        }
    }

    pub fn settings(&self, dir: &Path) -> SshSettings {
        let settings = SshSettings::new("lab", vec![self.host()], script());
        SshSettings { slots: MACHINES, way: self.way(dir), ..settings }
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// None if another process has taken the port meanwhile.
fn listen(folder: &Path, port: u16) -> Option<Child> {
    let config = folder.join("sshd_config");
    let at = |name: &str| folder.join(name).display().to_string();
    let text = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nPidFile none\nAuthorizedKeysFile {}\nUsePAM no\nStrictModes no\n\
         PasswordAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 200\n",
        at("host"),
        at("id.pub"),
    );
    fs::write(&config, text).unwrap();
    let mut daemon = Command::new("/usr/sbin/sshd");
    daemon.args(["-D", "-e", "-f"]).arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut daemon = daemon.spawn().expect("openssh-server is installed");
    let mut said = BufReader::new(daemon.stderr.take().unwrap());
    let mut line = String::new();
    while said.read_line(&mut line).unwrap() > 0 {
        if line.contains("Server listening on") {
            // It goes on writing: this thread must read.
            std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
            return Some(daemon);
        }
    }
    assert!(line.contains("in use"), "{line}");
    daemon.wait().unwrap();
    None
}

pub struct Ssh {
    pub local: Local,
    pub provider: SshProvider,
    pub sshd: Sshd,
    pub dir: PathBuf,
}

pub fn ssh() -> Ssh {
    let home = tempfile::tempdir().unwrap();
    let (sshd, dir) = (Sshd::start(&home.path().join("sshd")), home.path().join("r"));
    let provider = SshProvider::new(sshd.settings(&dir));
    let root = dir.join(CONTROL_ID).join(sshd.host().folder());
    Ssh { local: local_at(home, root), provider, sshd, dir }
}

impl Subject for Ssh {
    fn provider(&self) -> &dyn Provider {
        &self.provider
    }
    fn await_runner<'a>(&'a self, name: &'a str) -> Deed<'a> {
        self.local.await_runner(name)
    }
    fn kill_runner(&self, name: &str) {
        self.local.kill_runner(name);
    }
    fn replace_by_stranger<'a>(&'a self, name: &'a str) -> Deed<'a> {
        self.local.replace_by_stranger(name)
    }
    fn lose_nonce(&self, name: &str) -> bool {
        self.local.lose_nonce(name)
    }
    fn starts(&self, name: &str) -> usize {
        self.local.starts(name)
    }
}
