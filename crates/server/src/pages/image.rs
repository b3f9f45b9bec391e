//! Previews of pictures that runs left behind. Only what begins like a picture is shown, whatever it is called; everything else is saved.

use super::session::Visitor;
use super::{OrShown as _, PageResult};
use crate::Shared;
use crate::input::Path;
use crate::problem::Problem;
use crate::routes::id;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use futures_util::StreamExt as _;
use futures_util::stream;

/// Larger pictures are saved and looked at elsewhere.
pub(crate) const LARGEST: i64 = 8 << 20;

/// Whether a file is called like a picture: then it is worth a look at its bytes.
pub(crate) fn is_named(path: &str) -> bool {
    let ending = path.rsplit_once('.').map_or("", |(_, ending)| ending).to_ascii_lowercase();
    matches!(ending.as_str(), "png" | "jpg" | "jpeg" | "gif" | "webp")
}

/// The kind of picture that begins with these bytes.
fn kind(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// `GET /runs/{id}/artifacts/{artifact}/preview`.
pub(crate) async fn preview(
    State(state): State<Shared>,
    visitor: Visitor,
    Path((run, artifact)): Path<(String, String)>,
) -> PageResult {
    let (run, artifact) = (id("run", &run).or_shown(&visitor)?, id("artifact", &artifact).or_shown(&visitor)?);
    let (_, bytes) = state.engine.open_artifact(visitor.token.org, run, artifact).await.or_shown(&visitor)?;
    let fits = bytes.size <= LARGEST;
    let mut pieces = Box::pin(bytes.into_stream());
    let first = match pieces.next().await {
        Some(piece) => piece.map_err(|error| Problem::internal(error.to_string())).or_shown(&visitor)?,
        None => Vec::new(),
    };
    let Some(kind) = kind(&first).filter(|_| fits) else {
        let problem = Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "not_a_picture",
            "this file is no picture that pages show",
        );
        return Err(problem.fix("save it")).or_shown(&visitor);
    };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "private, no-store"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
        (header::CONTENT_DISPOSITION, "inline"),
    ];
    Ok((headers, Body::from_stream(stream::once(async { Ok(first) }).chain(pieces))).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_known_by_its_first_bytes() {
        assert_eq!(kind(b"\x89PNG\r\n\x1a\nrest"), Some("image/png"));
        assert_eq!(kind(b"\xff\xd8\xff\xe0"), Some("image/jpeg"));
        assert_eq!(kind(b"GIF89a"), Some("image/gif"));
        assert_eq!(kind(b"RIFF\x01\x02\x03\x04WEBPVP8 "), Some("image/webp"));
        for other in [&b"<svg xmlns='http://www.w3.org/2000/svg'>"[..], b"<html>", b"GIF", b"RIFF\0\0\0\0WAVE", b""] {
            assert_eq!(kind(other), None);
        }
        assert!(is_named("out/a.PNG") && !is_named("a.svg") && !is_named("png"));
    }
}
