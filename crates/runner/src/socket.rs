//! The runner's own socket: proves the runner's identity by its nonce, and accepts the order to shut down. One line per request and answer.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use wire::model::boot::{Boot, SOCKET_FILE, SocketAnswer, SocketAsk};

/// The kernel's limit is 107; some languages' libraries count less.
const LONGEST_PATH: usize = 100;
const LONGEST_ASK: u64 = 4096;

pub struct Socket {
    listener: UnixListener,
    pub path: PathBuf,
}

impl Socket {
    /// The caller holds the instance's lock, so a socket file that is there is left over and may be replaced.
    pub fn bind(dir: &Path) -> io::Result<Socket> {
        let (plain, pointer) = (dir.join(SOCKET_FILE), dir.join(format!("{SOCKET_FILE}.path")));
        let path = place(dir, SOCKET_FILE)?;
        if path == plain {
            let _ = std::fs::remove_file(&pointer);
        } else {
            std::fs::write(&pointer, path.as_os_str().as_encoded_bytes())?;
        }
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Socket { listener, path })
    }

    /// Answers for ever; `shut_down` hears of every order to end.
    pub async fn serve(&self, boot: Boot, shut_down: mpsc::UnboundedSender<()>) -> io::Result<()> {
        loop {
            let (peer, _) = self.listener.accept().await?;
            tokio::spawn(answer(peer, boot.clone(), shut_down.clone()));
        }
    }
}

/// To be called while the lock is still held: afterwards another runner's socket may lie there.
pub fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
    if let Some(folder) = path.parent().filter(|folder| folder.starts_with("/tmp")) {
        let _ = std::fs::remove_dir(folder); // only an empty one, so never an instance's
    }
}

/// Where a socket of this folder lies: there, or, where the path would be too long, in a folder that stands for it.
pub fn place(dir: &Path, name: &str) -> io::Result<PathBuf> {
    let plain = dir.join(name);
    if plain.as_os_str().len() <= LONGEST_PATH { Ok(plain) } else { Ok(short_folder(dir)?.join(name)) }
}

/// A folder only its owner may enter, the same for every runner of this instance.
fn short_folder(dir: &Path) -> io::Result<PathBuf> {
    let name = blake3::hash(dir.as_os_str().as_encoded_bytes()).to_hex();
    let folder = Path::new("/tmp").join(format!("remuda-{}", &name[..16]));
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let about = std::fs::symlink_metadata(&folder)?;
            let mine = std::os::unix::fs::MetadataExt::uid(&about) == nix::unistd::geteuid().as_raw();
            let closed = about.is_dir() && about.permissions().mode() & 0o077 == 0;
            if !(mine && closed) {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    format!("{} is not ours", folder.display()),
                ));
            }
        }
        made => made?,
    }
    Ok(folder)
}

async fn answer(mut peer: UnixStream, boot: Boot, shut_down: mpsc::UnboundedSender<()>) {
    let (read, mut write) = peer.split();
    let mut line = String::new();
    if BufReader::new(read.take(LONGEST_ASK)).read_line(&mut line).await.is_err() {
        return;
    }
    let (ending, refused) = match serde_json::from_str(&line) {
        Ok(SocketAsk::Identify) => (false, None),
        Ok(SocketAsk::Shutdown { nonce }) if nonce == boot.nonce => (true, None),
        Ok(SocketAsk::Shutdown { .. }) => (false, Some("another instance's nonce".to_owned())),
        Err(error) => (false, Some(error.to_string())),
    };
    let answer = SocketAnswer { name: boot.name, nonce: boot.nonce, pid: std::process::id() as i32, refused };
    let text = serde_json::to_string(&answer).expect("plain data") + "\n";
    let _ = write.write_all(text.as_bytes()).await;
    if ending && shut_down.send(()).is_ok() {
        // Stays open until this process ends: who asked waits for that.
        std::future::pending::<()>().await;
    }
}
