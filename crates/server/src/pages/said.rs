//! The line that confirms an act on the page reached after it. It travels in a cookie of a few seconds, so that any server may answer the
//! next request and the address stays as it is. The cookie holds a word of a fixed list, never text.

use super::parts;
use maud::{Markup, html};

/// What was done, and what the page says of it.
const WORDS: [(&str, &str); 29] = [
    ("start", "It starts."),
    ("cancel", "It is being cancelled."),
    ("pause", "It is being paused."),
    ("resume", "It goes on."),
    ("retry", "It is tried again."),
    ("send", "Sent."),
    ("extend", "Kept until "),
    ("release", "Released: the folder may be deleted now."),
    ("several", "Done for each run that was chosen."),
    ("approve", "Approved."),
    ("edit", "Approved with the input as it was edited."),
    ("answer", "Approved with the answer."),
    ("reject", "Rejected."),
    ("ticket-resume", "The run goes on."),
    ("ticket-skip", "The step is skipped."),
    ("ticket-retry", "The step is tried again."),
    ("ticket-abort", "The run is being aborted."),
    ("ticket-done", "Noted: it was done."),
    ("ticket-not_done", "Noted: it was not done."),
    ("terminate", "The machine is being ended."),
    ("workflow-cancel", "The workflow is being cancelled."),
    ("workflow-retry", "This workflow does it again."),
    ("invalidate", "Invalidated: the next call is executed."),
    ("call-cancel", "The call is given up."),
    ("scan", "A scan was asked for."),
    ("keep", "Kept, with the reason."),
    ("orphan-terminate", "It is being ended."),
    ("revoke", "Revoked."),
    ("new", "Submitted."),
];

/// How long a browser keeps it: the page reached is asked for at once.
pub(crate) const SECONDS: i64 = 10;

/// What was done, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Said {
    word: &'static str,
    text: &'static str,
    at: i64,
}

impl Said {
    pub(crate) fn of(word: &str) -> Option<Said> {
        Said::until(word, 0)
    }

    pub(crate) fn until(word: &str, at: i64) -> Option<Said> {
        let (word, text) = WORDS.into_iter().find(|(known, _)| *known == word)?;
        Some(Said { word, text, at })
    }

    /// From a cookie, whose text a user can choose.
    pub(crate) fn read(value: &str) -> Option<Said> {
        let (word, at) = value.split_once('.')?;
        Said::until(word, at.parse().ok().filter(|at| (0..1 << 50).contains(at))?)
    }

    pub(crate) fn written(self) -> String {
        format!("{}.{}", self.word, self.at)
    }

    pub(crate) fn line(self) -> Markup {
        html! { p.said { (self.text) @if self.at > 0 { (parts::time(self.at)) "." } } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_of_the_list_are_said() {
        for (value, line) in [
            ("send.0", Some("<p class=\"said\">Sent.</p>")),
            ("send", None),
            ("<b>.0", None),
            ("extend.-1", None),
            ("extend.9999999999999999999", None),
        ] {
            assert_eq!(Said::read(value).map(|said| said.line().into_string()).as_deref(), line, "{value}");
        }
        let kept = Said::until("extend", 1_794_731_405_000).unwrap();
        assert_eq!(Said::read(&kept.written()), Some(kept));
        assert!(kept.line().into_string().contains("15 Nov 08:30"));
        assert_eq!(Said::of("other"), None);
    }
}
