//! Takes a Rust source apart into code, strings and comments, each with its line. Knows just enough of the language
//! for that: nested comments, raw strings, and that `'a` is a lifetime while `'a'` is a character.

#[derive(Default)]
pub struct Lexed {
    /// The source with the insides of strings and comments as blanks; line for line the same.
    pub code: String,
    /// (line, text) of every string literal, escapes as written.
    pub strings: Vec<(usize, String)>,
}

pub fn lex(source: &str) -> Lexed {
    let mut lexer = Lexer { chars: source.chars().collect(), at: 0, line: 1, out: Lexed::default() };
    while lexer.at < lexer.chars.len() {
        lexer.next_piece();
    }
    lexer.out
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    line: usize,
    out: Lexed,
}

impl Lexer {
    fn next_piece(&mut self) {
        let starts_word = self.at == 0 || !is_word(self.chars[self.at - 1]);
        match (self.peek(0), self.peek(1)) {
            ('/', '/') => self.blank_while(|lexer| lexer.peek(0) != '\n'),
            ('/', '*') => self.block_comment(),
            ('"', _) => self.string(),
            ('r', '"' | '#') if starts_word => self.raw_string(1),
            ('b' | 'c', 'r') if starts_word && matches!(self.peek(2), '"' | '#') => self.raw_string(2),
            ('\'', '\\') => self.character(),
            ('\'', _) if self.peek(2) == '\'' => self.character(),
            _ => self.keep(),
        }
    }

    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn keep(&mut self) {
        let c = self.chars[self.at];
        self.line += usize::from(c == '\n');
        self.out.code.push(c);
        self.at += 1;
    }

    fn blank(&mut self) -> char {
        let c = self.chars[self.at];
        self.line += usize::from(c == '\n');
        self.out.code.push(if c == '\n' { '\n' } else { ' ' });
        self.at += 1;
        c
    }

    fn blank_while(&mut self, more: impl Fn(&Lexer) -> bool) {
        while self.at < self.chars.len() && more(self) {
            self.blank();
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.at < self.chars.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => depth += 1,
                ('*', '/') => depth -= 1,
                _ => {
                    self.blank();
                    continue;
                }
            }
            self.blank();
            self.blank();
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.keep();
        let (line, mut text) = (self.line, String::new());
        while self.at < self.chars.len() && self.peek(0) != '"' {
            let escape = self.peek(0) == '\\';
            text.push(self.blank());
            if escape && self.at < self.chars.len() {
                text.push(self.blank());
            }
        }
        self.close(1, line, text);
    }

    /// `prefix` characters stand before the `#`s. `r#name` is an identifier, not a string.
    fn raw_string(&mut self, prefix: usize) {
        let hashes = (0..).take_while(|ahead| self.peek(prefix + ahead) == '#').count();
        if self.peek(prefix + hashes) != '"' {
            return self.keep();
        }
        for _ in 0..prefix + hashes + 1 {
            self.keep();
        }
        let (line, mut text) = (self.line, String::new());
        let ends = |lexer: &Lexer| lexer.peek(0) == '"' && (1..=hashes).all(|ahead| lexer.peek(ahead) == '#');
        while self.at < self.chars.len() && !ends(self) {
            text.push(self.blank());
        }
        self.close(hashes + 1, line, text);
    }

    fn close(&mut self, length: usize, line: usize, text: String) {
        for _ in 0..length.min(self.chars.len() - self.at) {
            self.keep();
        }
        self.out.strings.push((line, text));
    }

    fn character(&mut self) {
        self.keep();
        if self.peek(0) == '\\' {
            self.blank();
        }
        self.blank();
        self.blank_while(|lexer| !matches!(lexer.peek(0), '\'' | '\n'));
        if self.at < self.chars.len() {
            self.keep();
        }
    }
}

/// Whether `word` stands in `text` as a whole word.
pub fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        // A word that ends in `!` or `:` has its own end.
        let open = |c: Option<char>, edge: char| !is_word(edge) || !c.is_some_and(is_word);
        let (first, last) = (word.chars().next().unwrap_or(' '), word.chars().next_back().unwrap_or(' '));
        open(before, first) && open(after, last)
    })
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[test]
fn strings_and_comments_are_not_code() {
    let source = r##"
let a = "sleep // not a comment"; // sleep
let b: &'static str = r#"raw "sleep" "#; /* a /* nested */ sleep */ let c = '"'; let d = '\''; let r#type = 'x';
let e = b"\"sleep";
"##;
    let lexed = lex(source);
    assert!(!has_word(&lexed.code, "sleep"), "{}", lexed.code);
    assert_eq!(lexed.code.lines().count(), source.lines().count());
    assert!(lexed.code.contains("let r#type = 'x'") || lexed.code.contains("let r#type = ' '"), "{}", lexed.code);
    let strings: Vec<_> = lexed.strings.iter().map(|(line, text)| (*line, text.as_str())).collect();
    assert_eq!(strings, [(2, "sleep // not a comment"), (3, r#"raw "sleep" "#), (4, r#"\"sleep"#)]);
}

#[test]
fn a_word_is_a_whole_word() {
    for (text, word, found) in [
        ("Instant::now()", "Instant", true),
        ("Instantly", "Instant", false),
        ("let x = todo!()", "todo!", true),
        ("std::fs::read", "std::fs", true),
        ("my_sleep()", "sleep", false),
    ] {
        assert_eq!(has_word(text, word), found, "{word} in {text}");
    }
}
