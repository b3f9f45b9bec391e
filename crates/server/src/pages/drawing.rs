//! Drawings: SVG made from plain data, as escaped markup. Widths are percentages or fixed, colours are classes of the stylesheet: the
//! CSP forbids styles in attributes. Knows no entity, reads nothing; each drawing has a table beside it on its page.

pub(crate) mod bars;
pub(crate) mod graph;
mod layered;
pub(crate) mod timeline;

/// How a thing that is drawn is doing. Shown by a colour, and by a mark for people who do not see colours.
/// The order is by how much it matters: of several things drawn as one, the greatest is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tone {
    /// Finished as intended.
    Done,
    /// Left out, or ended on request.
    Stopped,
    /// Not begun.
    Waits,
    Runs,
    /// Goes on when a person has answered or resumed it.
    Asks,
    Failed,
}

impl Tone {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Tone::Done => "tone-done",
            Tone::Stopped => "tone-stopped",
            Tone::Waits => "tone-waits",
            Tone::Runs => "tone-runs",
            Tone::Asks => "tone-asks",
            Tone::Failed => "tone-failed",
        }
    }

    pub(crate) fn mark(self) -> &'static str {
        match self {
            Tone::Done => "✓",
            Tone::Stopped => "–",
            Tone::Waits => "○",
            Tone::Runs => "▸",
            Tone::Asks => "?",
            Tone::Failed => "✗",
        }
    }
}

/// At most `most` characters, the last of them `…` if something was left out.
fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
    }
}

/// `part` of `whole` as a percentage with two digits, for attributes of SVG. Between 0 and 100.
fn percent(part: i64, whole: i64) -> String {
    let whole = i128::from(whole.max(1));
    let hundredths = (i128::from(part.max(0)) * 10_000 / whole).min(10_000);
    format!("{}.{:02}%", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_percentages_whatever_the_numbers_are() {
        let check = |part, whole, expected: &str| assert_eq!(percent(part, whole), expected, "{part} of {whole}");
        check(1, 3, "33.33%");
        check(3, 3, "100.00%");
        check(7, 3, "100.00%");
        check(-7, 3, "0.00%");
        check(0, 0, "0.00%");
        check(i64::MAX, i64::MAX, "100.00%");
    }

    #[test]
    fn a_long_name_is_shortened_between_characters() {
        assert_eq!(shortened("grün", 4), "grün");
        assert_eq!(shortened("grünes", 4), "grü…");
    }
}
