//! The runner's binary for machines that fetch it: the same file that the provider `ssh` copies to its hosts, by its content's hash, so that
//! a machine gets what it was told to expect or nothing.

use crate::auth::Machine;
use crate::problem::{HandlerResult, Problem};
use crate::routes::Path;
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use engine::adapters::ssh::{BINARY_VARIABLE, BUILD, Binary};
use futures_util::stream;
use model::{Refused, Trouble};
use std::path::PathBuf;
use tokio::io::AsyncReadExt as _;
use tokio::sync::OnceCell;

/// Read at once of the file.
const PIECE_BYTES: usize = 64 << 10;

/// Hashed with the first request.
static BINARY: OnceCell<Binary> = OnceCell::const_new();

pub(crate) async fn binary(_machine: Machine, Path((target, hash)): Path<(String, String)>) -> HandlerResult<Response> {
    let binary = BINARY.get_or_try_init(read).await?;
    if binary.target() != Some(target.as_str()) || binary.hash != hash {
        let (known, of) = (&binary.hash, binary.target().unwrap_or("a script"));
        let fix = format!("there is {known} for {of}; another is built by `{BUILD}` and named in {BINARY_VARIABLE}");
        return Err(Problem::from(Refused::not_found("binary", format!("{target}/{hash}"))).fix(fix));
    }
    let file = tokio::fs::File::open(&binary.path).await.map_err(|error| Trouble::internal(error.to_string()))?;
    let pieces = stream::try_unfold(file, |mut file| async move {
        let mut piece = vec![0; PIECE_BYTES];
        let length = file.read(&mut piece).await?;
        piece.truncate(length);
        std::io::Result::Ok((length > 0).then_some((piece, file)))
    });
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, binary.bytes.to_string()),
    ];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

async fn read() -> Result<Binary, Trouble> {
    let set = std::env::var_os(BINARY_VARIABLE).map(PathBuf::from);
    let path = Binary::choose(set.as_deref(), std::path::Path::new("/proc/self/exe"));
    let read = tokio::task::spawn_blocking(move || Binary::read(&path)).await;
    read.map_err(|error| Trouble::internal(error.to_string()))?
}
