//! Requests to a runner over its socket: its identity, and the order to end. An answer with another nonce is ignored.

use super::process::Trace;
use model::boot::{SOCKET_FILE, SocketAnswer, SocketAsk};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names the socket when the instance's own path is too long for one.
const SOCKET_PATH_FILE: &str = "runner.sock.path";
const ANSWER_BYTES: u64 = 16 * 1024;

/// Asks once; the process is the one at the other end of the socket, by the kernel's word.
pub fn ask(dir: &Path, ask: &SocketAsk, within: Duration) -> io::Result<(SocketAnswer, Option<Trace>)> {
    let stream = UnixStream::connect(socket_path(dir)?)?;
    stream.set_read_timeout(Some(within))?;
    stream.set_write_timeout(Some(within))?;
    let mut line = serde_json::to_string(ask)?;
    line.push('\n');
    (&stream).write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new((&stream).take(ANSWER_BYTES)).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let peer = getsockopt(&stream, PeerCredentials)?;
    Ok((serde_json::from_str(&answer)?, Trace::of(peer.pid())?))
}

fn socket_path(dir: &Path) -> io::Result<PathBuf> {
    match std::fs::read_to_string(dir.join(SOCKET_PATH_FILE)) {
        Ok(path) => Ok(PathBuf::from(path.trim_end_matches('\n'))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(dir.join(SOCKET_FILE)),
        Err(error) => Err(error),
    }
}
