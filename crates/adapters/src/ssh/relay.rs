//! What `repl runner relay` does on a host: connections to a socket that only the user may open are carried over stdin and stdout. It ends
//! with its stdin, so with the control plane that holds it, and needs no permission to forward anything.

use super::mux::{self, Connection};
use super::place::Place;
use super::remote::{Ask, Deed, say};
use crate::local::at;
use model::boot::{BOOT_FILE, Boot};
use model::{Trouble, TroubleKind};
use serde_json::Value;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::UnixListener;
use tokio::sync::mpsc;

/// What a relay says before it carries anything.
pub const OPEN: &str = "open";
/// The machine is gone, or its runner dials the control plane itself.
pub const UNNEEDED: &str = "unneeded";
const LONGEST_QUESTION: u64 = 64 << 10;

/// One line says for which machine; the rest is frames.
pub fn relay(from: impl AsFd, to: impl AsFd + Write) -> io::Result<()> {
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(serve(from, to));
    // The thread that reads stdin cannot be told to end.
    runtime.shutdown_background();
    done
}

async fn serve(from: impl AsFd, mut to: impl AsFd + Write) -> io::Result<()> {
    let mut from = BufReader::new(pipe(from)?);
    let mut line = String::new();
    (&mut from).take(LONGEST_QUESTION).read_line(&mut line).await?;
    let ask: Ask = serde_json::from_str(&line)?;
    let answered = open(&ask);
    let word = answered.as_ref().map_err(Trouble::clone).map(|socket| match socket {
        Some(_) => Value::from(OPEN),
        None => Value::from(UNNEEDED),
    });
    say(&word, &mut to)?;
    let Ok(Some((socket, path))) = answered else { return Ok(()) };
    let (bring, incoming) = mpsc::channel(1);
    let accepts = async {
        while let Ok((stream, _)) = socket.accept().await {
            if bring.send(Box::new(stream) as Connection).await.is_err() {
                return;
            }
        }
    };
    let done = tokio::select! {
        () = accepts => Ok(()),
        carried = mux::accept(from, pipe(to)?, incoming) => carried,
    };
    let _ = std::fs::remove_file(path);
    done
}

fn pipe(of: impl AsFd) -> io::Result<tokio::fs::File> {
    Ok(tokio::fs::File::from_std(of.as_fd().try_clone_to_owned()?.into()))
}

/// The socket, if the runner of this machine dials one.
fn open(ask: &Ask) -> Result<Option<(UnixListener, std::path::PathBuf)>, Trouble> {
    let Deed::Relay { name } = &ask.deed else {
        return Err(Trouble::new(TroubleKind::InvalidSpec, "a relay is for one machine"));
    };
    let place = Place::open(ask)?;
    place.check(name)?;
    let machine = place.machine(name)?;
    let boot =
        std::fs::read(machine.join(BOOT_FILE)).ok().and_then(|bytes| serde_json::from_slice::<Boot>(&bytes).ok());
    let needed = boot.is_some_and(|boot| boot.control_url.starts_with("unix:"));
    if !needed || crate::local::is_terminated(&machine) {
        return Ok(None);
    }
    let path = place.begin_relay(name)?;
    let socket = bind(&path).map_err(at(&path))?;
    Ok(Some((socket, path)))
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(socket)
}
