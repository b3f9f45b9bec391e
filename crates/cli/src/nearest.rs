//! What somebody probably meant: the nearest known word, near enough to be worth saying.

/// Less alike than this, a suggestion confuses more than it helps.
const ALIKE_ENOUGH: f64 = 0.7;

pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.into_iter().map(|candidate| (strsim::jaro_winkler(word, candidate), candidate));
    scored
        .filter(|(score, _)| *score > ALIKE_ENOUGH)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, candidate)| candidate)
}

/// `did you mean …?`, or what there is.
pub fn suggestion(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(candidate) => format!("did you mean `{candidate}`?"),
        None => format!("known: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_find_their_word() {
        let known = ["commands", "env", "files", "max_duration"];
        for (slip, meant) in [
            ("comands", Some("commands")),
            ("file", Some("files")),
            ("max-duration", Some("max_duration")),
            ("zzz", None),
        ] {
            assert_eq!(nearest(slip, known), meant, "{slip}");
        }
    }
}
