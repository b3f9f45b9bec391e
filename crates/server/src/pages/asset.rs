//! The stylesheet and the script: embedded, named by their hash, kept by browsers for ever.

use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::sync::OnceLock;

const STYLE: &str = include_str!("static/style.css");
const ICON: &str = include_str!("static/icon.svg");
const SCRIPT: &str = include_str!("static/script.js");

pub(crate) struct Asset {
    pub(crate) path: String,
    pub(crate) hash: String,
    name: String,
    kind: &'static str,
    text: String,
}

fn asset(stem: &str, ending: &str, kind: &'static str, source: &str) -> Asset {
    // Browsers need neither comments nor indents.
    let lines = source
        .lines()
        .map(str::trim_start)
        .filter(|line| !line.starts_with("//") && !line.starts_with("/*") && !line.is_empty());
    let text = lines.collect::<Vec<_>>().join("\n");
    let hash = blake3::hash(text.as_bytes()).to_hex()[..16].to_owned();
    let name = format!("{stem}-{hash}.{ending}");
    Asset { path: format!("/static/{name}"), hash, name, kind, text }
}

pub(crate) fn style() -> &'static Asset {
    static IT: OnceLock<Asset> = OnceLock::new();
    IT.get_or_init(|| asset("style", "css", "text/css; charset=utf-8", STYLE))
}

pub(crate) fn script() -> &'static Asset {
    static IT: OnceLock<Asset> = OnceLock::new();
    IT.get_or_init(|| asset("script", "js", "text/javascript; charset=utf-8", SCRIPT))
}

pub(crate) fn icon() -> &'static Asset {
    static IT: OnceLock<Asset> = OnceLock::new();
    IT.get_or_init(|| asset("icon", "svg", "image/svg+xml", ICON))
}

/// They hold no user's data: no session is needed.
pub(crate) async fn get(Path(name): Path<String>) -> Response {
    let Some(found) = [style(), script(), icon()].into_iter().find(|asset| asset.name == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(found.kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, found.text.as_str()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_and_the_style_stay_small() {
        let (script, style) = (script().text.len(), style().text.len());
        assert!(script <= 15 * 1024, "the script has {script} bytes");
        assert!(style <= 20 * 1024, "the stylesheet has {style} bytes");
    }
}
