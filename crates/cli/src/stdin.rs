//! What is piped into `repl run`: with `-i` it is read to its end, sent as a blob and becomes the command's standard input; without it
//! data that waits there gets a hint. Never reads without being asked to, and never waits for data then.

use crate::complaint::{Complaint, Done};
use crate::control_plane::{API, ControlPlane};
use futures_util::stream;
use std::fs::File;
use std::io::{IsTerminal as _, Read, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;
use tokio::io::AsyncReadExt as _;
use wire::api::{BlobList, StdinBody};
use wire::client::Method;
use wire::model::spec::MAX_STDIN_BYTES;

const CHUNK: usize = 256 << 10;

/// Everything that was piped in, in a file without a name.
pub struct Piped {
    file: File,
    hash: String,
    size: i64,
}

impl Piped {
    pub fn body(&self) -> StdinBody {
        StdinBody { hash: self.hash.clone(), size: self.size }
    }
}

pub fn read() -> Done<Piped> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        eprintln!("repl: reads the command's standard input from the terminal; Ctrl-D ends it");
    }
    keep(stdin.lock(), MAX_STDIN_BYTES)
}

fn keep(mut from: impl Read, most: i64) -> Done<Piped> {
    let cannot =
        |what: &str, error: std::io::Error| Complaint::refused(format!("cannot {what} standard input: {error}"));
    let kept = |error| cannot("keep", error).fix("set TMPDIR to a folder with room for it");
    let mut file = tempfile::tempfile().map_err(kept)?;
    let (mut hasher, mut size, mut piece) = (blake3::Hasher::new(), 0, vec![0; CHUNK]);
    loop {
        let read = match from.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(cannot("read", error)),
        };
        size += read as i64;
        if size > most {
            let text = format!("standard input is larger than {}", crate::show::size(most));
            return Err(Complaint::refused(text).fix("write it into a file, send that with --file and read it there"));
        }
        hasher.update(&piece[..read]);
        file.write_all(&piece[..read]).map_err(kept)?;
    }
    Ok(Piped { file, hash: hasher.finalize().to_hex().to_string(), size })
}

/// Sends the bytes, unless the control plane has them.
pub async fn send(plane: &ControlPlane, piped: &Piped) -> Done<()> {
    let asked = BlobList { hashes: vec![piped.hash.clone()], ..BlobList::default() };
    let missing: BlobList = plane.question("/blobs/missing", &asked).await?;
    if missing.hashes.is_empty() {
        return Ok(());
    }
    let route = &format!("{API}/blobs/{}", piped.hash);
    let sent = plane.patiently(|client| async move {
        let begin = || -> std::io::Result<File> {
            let mut file = piped.file.try_clone()?;
            file.rewind()?;
            Ok(file)
        };
        let file = match begin() {
            Ok(file) => tokio::fs::File::from_std(file),
            Err(error) => return Ok(Err(Complaint::refused(format!("cannot send standard input: {error}")))),
        };
        let request = client.request(Method::PUT, route).stream(pieces(file), Some(piped.size as u64));
        request.send().await.map(|_| Ok(()))
    });
    sent.await?
}

fn pieces(file: tokio::fs::File) -> impl futures_util::Stream<Item = std::io::Result<bytes::Bytes>> + Send {
    stream::try_unfold(file, |mut file| async move {
        let mut piece = bytes::BytesMut::with_capacity(CHUNK);
        let read = file.read_buf(&mut piece).await?;
        Ok(if read == 0 { None } else { Some((piece.freeze(), file)) })
    })
}

/// Says once that something is piped in which the command does not get.
pub struct Hint {
    open: bool,
}

impl Hint {
    pub fn unless(needless: bool) -> Hint {
        Hint { open: !needless }
    }

    /// Asked before the run is submitted and when it has ended: data may be written late.
    pub fn give_if_due(&mut self) {
        if self.open && is_waiting() {
            self.open = false;
            eprintln!("repl: what is piped in is not given to the command: add -i (--stdin) for that");
        }
    }
}

/// Whether data waits on our standard input: in a pipe or socket, or the rest of a file.
fn is_waiting() -> bool {
    let Ok(stdin) = std::io::stdin().as_fd().try_clone_to_owned() else { return false };
    let mut stdin = File::from(stdin);
    let Ok(about) = stdin.metadata() else { return false };
    let kind = about.file_type();
    if kind.is_file() {
        return stdin.stream_position().is_ok_and(|at| at < about.len());
    }
    (kind.is_fifo() || kind.is_socket()) && bytes_waiting() > 0
}

fn bytes_waiting() -> libc::c_int {
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD writes one integer, which is there to be written.
    let asked = unsafe { libc::ioctl(libc::STDIN_FILENO, libc::FIONREAD, &mut bytes) };
    if asked == 0 { bytes } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_piped_in_is_kept_whole_or_refused() {
        let bytes = vec![b'x'; 700_000];
        let mut piped = keep(&bytes[..], 700_000).unwrap();
        assert_eq!((piped.size, piped.hash.clone()), (700_000, blake3::hash(&bytes).to_hex().to_string()));
        let mut again = Vec::new();
        piped.file.rewind().unwrap();
        piped.file.read_to_end(&mut again).unwrap();
        assert!(again == bytes);
        let refused = keep(&bytes[..], 699_999).err().unwrap();
        assert!(refused.fix.unwrap().contains("--file"), "{}", refused.text);
        assert_eq!(keep(&b""[..], 1).unwrap().size, 0, "nothing is something too");
    }
}
