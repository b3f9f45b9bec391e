//! A host as settings name it: `[USER@]HOST[:PORT]`. HOST may be an alias of the user's ssh config. Reads and checks the text only: what
//! passes here can stand on a command line.

const LONGEST: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// As it was written.
    pub text: String,
    pub user: Option<String>,
    pub host: String,
    pub port: Option<u16>,
}

impl Target {
    pub fn parse(text: &str) -> Result<Target, String> {
        let wrong = |why: &str| Err(format!("`{text}` is not USER@HOST[:PORT]: {why}"));
        if text.len() > LONGEST {
            return Err(format!("a host has at most {LONGEST} characters"));
        }
        let (user, rest) = match text.split_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, text),
        };
        if user.is_some_and(|user| !is_word(user)) {
            return wrong("the user is letters, digits, `.`, `_` and `-`");
        }
        let (host, port) = match rest.strip_prefix('[') {
            Some(bracketed) => match bracketed.split_once(']') {
                Some((host, "")) => (host, None),
                Some((host, port)) if port.starts_with(':') => (host, Some(&port[1..])),
                _ => return wrong("an IPv6 address stands in [ and ]"),
            },
            None => match rest.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let is_fine = if rest.starts_with('[') { host.parse::<std::net::Ipv6Addr>().is_ok() } else { is_word(host) };
        if !is_fine {
            return wrong("the host is letters, digits, `.`, `_` and `-`; an IPv6 address stands in [ and ]");
        }
        let port = match port.map(str::parse::<u16>) {
            None => None,
            Some(Ok(port)) if port > 0 => Some(port),
            Some(_) => return wrong("a port is a number from 1 to 65535"),
        };
        Ok(Target { text: text.to_owned(), user: user.map(str::to_owned), host: host.to_owned(), port })
    }

    /// The folder of this host below `~/.repl/<control_id>/`. Two hosts that share a home have one each.
    pub fn folder(&self) -> String {
        let readable: String = self.text.chars().map(|c| if is_plain(c) { c } else { '-' }).take(40).collect();
        format!("{}-{}", readable.trim_start_matches(['-', '.']), self.mark())
    }

    /// Tells hosts apart whose readable names are the same.
    pub fn mark(&self) -> String {
        let hash =
            self.text.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        format!("{hash:08x}")
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read() {
        let read = |text: &str| {
            let target = Target::parse(text).unwrap();
            (target.user, target.host, target.port)
        };
        let of = |user: Option<&str>, host: &str, port| (user.map(str::to_owned), host.to_owned(), port);
        assert_eq!(read("ada@box.example:2222"), of(Some("ada"), "box.example", Some(2222)));
        assert_eq!(read("box"), of(None, "box", None));
        assert_eq!(read("root@[fd00::1]:22"), of(Some("root"), "fd00::1", Some(22)));
        assert_eq!(read("[fd00::1]"), of(None, "fd00::1", None));
    }

    #[test]
    fn what_a_shell_or_ssh_could_misread_is_refused() {
        for text in [
            "",
            "@",
            "-oProxyCommand=x",
            "ada@-x",
            "-a@x",
            "a b",
            "a;b",
            "a$(b)",
            "a@b@c",
            "a:0",
            "a:65536",
            "a:x",
            "a:",
            "fd00::1",
            "[fd00::1",
            "[x]",
            "a\n",
            "ä",
        ] {
            assert!(Target::parse(text).is_err(), "{text:?}");
        }
        assert!(Target::parse(&"a".repeat(201)).is_err());
    }

    #[test]
    fn folders_differ_and_are_one_name() {
        let folder = |text: &str| Target::parse(text).unwrap().folder();
        assert_ne!(folder("a@b"), folder("a-b"));
        for text in ["root@[fd00::1]:22", "a@b:1", ".x"] {
            let folder = folder(text);
            assert!(folder.chars().all(is_plain) && !folder.starts_with(['.', '-']), "{folder}");
        }
    }
}
