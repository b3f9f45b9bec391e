//! The URI of a function: `dml+exec://<adapter>/<path>?<query>`. The adapter is the name of a program, and only names that the
//! settings list may be executed: a URI never chooses what a server runs.

use crate::uri::{BadUri, Uri};

pub const SCHEME: &str = "dml+exec";
const MAX_ADAPTER_BYTES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    uri: Uri,
    adapter: String,
}

/// Why a URI names no function that may be called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFunction {
    #[error("{0}")]
    Uri(#[from] BadUri),
    #[error("`{uri}` is not a function: write it as {SCHEME}://ADAPTER/PATH")]
    Scheme { uri: String },
    #[error("`{adapter}` is not the name of an adapter: a program's name of a-z, 0-9 and -, without a path")]
    Adapter { adapter: String },
    #[error("the function of the adapter `{adapter}` has no path: write {SCHEME}://{adapter}/NAME")]
    Path { adapter: String },
    #[error("the adapter `{adapter}` is not allowed here: list it in `[calls] adapters`")]
    NotAllowed { adapter: String },
}

impl Function {
    pub fn parse(text: &str) -> Result<Function, BadFunction> {
        let rest = text.strip_prefix(SCHEME).and_then(|rest| rest.strip_prefix("://"));
        let rest = rest.ok_or_else(|| BadFunction::Scheme { uri: text.to_owned() })?;
        let adapter = rest.split(['/', '?', '#']).next().unwrap_or("").to_owned();
        let good = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let is_name =
            (1..=MAX_ADAPTER_BYTES).contains(&adapter.len()) && adapter.bytes().all(good) && !adapter.starts_with('-');
        if !is_name {
            return Err(BadFunction::Adapter { adapter });
        }
        if rest[adapter.len()..].trim_start_matches('/').split(['?', '#']).next().is_none_or(str::is_empty) {
            return Err(BadFunction::Path { adapter });
        }
        Ok(Function { uri: Uri::new(text)?, adapter })
    }

    pub fn of(uri: &Uri) -> Result<Function, BadFunction> {
        Function::parse(uri.as_str())
    }

    pub fn uri(&self) -> &Uri {
        &self.uri
    }
    /// The program that is looked for on `$PATH`.
    pub fn adapter(&self) -> &str {
        &self.adapter
    }

    /// `allowed` as in the settings: names, or beginnings of names that end in `*`.
    pub fn permitted(&self, allowed: &[String]) -> Result<(), BadFunction> {
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => self.adapter.starts_with(start),
            None => self.adapter == *pattern,
        };
        if allowed.iter().any(matches) {
            Ok(())
        } else {
            Err(BadFunction::NotAllowed { adapter: self.adapter.clone() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_names_a_program_and_never_a_path() {
        let good = Function::parse("dml+exec://dml-exec-local/train?gpu=1").unwrap();
        assert_eq!((good.adapter(), good.uri().as_str()), ("dml-exec-local", "dml+exec://dml-exec-local/train?gpu=1"));
        for (bad, said) in [
            ("dml+exec:///bin/sh", "`` is not the name of an adapter"),
            ("dml+exec://../x", "`..` is not the name of an adapter"),
            ("dml+exec://.%2E/x", "not the name of an adapter"),
            ("dml+exec://%2Fbin%2Fsh/x", "not the name of an adapter"),
            ("dml+exec://a b/x", "not the name of an adapter"),
            ("dml+exec://user@a/x", "not the name of an adapter"),
            ("dml+exec://a:80/x", "not the name of an adapter"),
            ("dml+exec://-rf/x", "not the name of an adapter"),
            ("dml+exec://SH/x", "not the name of an adapter"),
            ("dml+exec://dml-exec-local", "has no path"),
            ("dml+exec://dml-exec-local/?x", "has no path"),
            ("dml+exec://a/../../bin/sh", "segment"),
            ("/bin/sh", "write it as dml+exec://"),
            ("file:///bin/sh", "write it as dml+exec://"),
            ("dml://list/get", "write it as dml+exec://"),
        ] {
            let error = Function::parse(bad).unwrap_err().to_string();
            assert!(error.contains(said), "{bad}: {error}");
        }
    }

    #[test]
    fn only_adapters_that_the_settings_list_are_executed() {
        let sh = Function::parse("dml+exec://sh/x").unwrap();
        let ours = Function::parse("dml+exec://dml-exec-repl/run").unwrap();
        let [server, embedded] = ["dml-exec-repl", "dml-exec-*"].map(|pattern| vec![pattern.to_owned()]);
        assert!(ours.permitted(&server).is_ok() && ours.permitted(&embedded).is_ok());
        for allowed in [&server, &embedded, &vec![]] {
            assert_eq!(sh.permitted(allowed), Err(BadFunction::NotAllowed { adapter: "sh".into() }));
        }
    }
}
