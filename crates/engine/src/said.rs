//! Sentences with durations in them, and the moments from which or until which these are counted: a page that stays open counts on.

use model::Timestamp;
use model::time::show_duration;
use std::ops::Range;

/// A duration within a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub bytes: Range<usize>,
    pub counts: Counts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    Since(Timestamp),
    Until(Timestamp),
}

/// A sentence that is being put together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) spans: Vec<Span>,
}

impl<T: Into<String>> From<T> for Said {
    fn from(text: T) -> Said {
        Said { text: text.into(), spans: Vec::new() }
    }
}

impl Said {
    pub(crate) fn new(text: impl Into<String>) -> Said {
        text.into().into()
    }

    pub(crate) fn then(mut self, text: impl AsRef<str>) -> Said {
        self.text.push_str(text.as_ref());
        self
    }

    /// How long it is since then.
    pub(crate) fn since(self, from: Timestamp, now: Timestamp) -> Said {
        self.span(now.since(from), Counts::Since(from))
    }

    /// How long it is until then; nothing that has come already.
    pub(crate) fn until(self, to: Timestamp, now: Timestamp) -> Said {
        self.span(to.since(now), Counts::Until(to))
    }

    /// ` for 3m`, if it is known since when.
    pub(crate) fn lasting(self, from: Option<Timestamp>, now: Timestamp) -> Said {
        match from {
            Some(from) => self.then(" for ").since(from, now),
            None => self,
        }
    }

    fn span(mut self, ms: i64, counts: Counts) -> Said {
        let start = self.text.len();
        self.text.push_str(&show_duration(ms));
        self.spans.push(Span { bytes: start..self.text.len(), counts });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_found_in_the_text() {
        let (now, then, later) = (Timestamp(10_000), Timestamp(6_000), Timestamp(75_000));
        let said = Said::new("é is paused").lasting(Some(then), now).then(", ends in ").until(later, now).then(".");
        assert_eq!(said.text, "é is paused for 4.0s, ends in 1m 5s.");
        let found: Vec<_> = said.spans.iter().map(|it| (&said.text[it.bytes.clone()], it.counts)).collect();
        assert_eq!(found, [("4.0s", Counts::Since(then)), ("1m 5s", Counts::Until(later))]);
        assert_eq!(Said::new("it waits").lasting(None, now).text, "it waits");
    }
}
