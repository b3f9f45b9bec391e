//! The known word that a mistyped one stands for, if it is near enough to be meant. Says nothing rather than something
//! unrelated: a wrong suggestion sends its reader the wrong way.

/// A beginning of a word shorter than this could be the beginning of anything.
const SHORTEST_BEGINNING: usize = 3;
/// From this length on, the first letter may be the wrong one.
const LONG: usize = 6;
/// Words that are equally near are all said, up to this many.
const SAID: usize = 3;

pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    all_nearest(word, known).into_iter().next()
}

/// `did you mean …?`, or what there is.
pub fn suggestion(word: &str, known: &[&str]) -> String {
    did_you_mean(word, known.iter().copied()).unwrap_or_else(|| format!("known: {}", known.join(", ")))
}

/// `did you mean …?`, if something is near enough.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let words: Vec<String> = all_nearest(word, known).into_iter().map(|word| format!("`{word}`")).collect();
    if words.is_empty() { None } else { Some(format!("did you mean {}?", words.join(" or "))) }
}

/// Every word that is as near as the nearest one.
fn all_nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut near: Vec<(usize, &str)> = known.into_iter().filter_map(|it| Some((slips(word, it)?, it))).collect();
    near.sort_by_key(|(slips, _)| *slips);
    let best = near.first().map(|(slips, _)| *slips);
    let mut words: Vec<&str> = near.into_iter().filter(|it| Some(it.0) == best).map(|it| it.1).collect();
    words.dedup();
    words.truncate(SAID);
    words
}

/// How many letters were added, left out, replaced or swapped with their neighbour, if that can have been a slip of the
/// fingers. In a short word one letter makes another word (`gpu` is not `cpu`, `top` is not `stop`), so its first letter
/// must be right or swapped. Words that differ in a number are different things (`exp-16` is not `exp-17`).
fn slips(word: &str, candidate: &str) -> Option<usize> {
    let (word, candidate) = (plain(word), plain(candidate));
    let shorter = word.chars().count().min(candidate.chars().count());
    let distance = strsim::osa_distance(&word, &candidate);
    let swapped = distance == 1 && strsim::levenshtein(&word, &candidate) == 2;
    let replaced = distance == 1 && !swapped && word.chars().count() == candidate.chars().count();
    let allowed = match shorter {
        0 | 1 => 0,
        2 if replaced => 0,
        2..=5 => 1,
        6..=9 => 2,
        _ => 3,
    };
    let begins_alike = word.chars().next() == candidate.chars().next();
    if digits(&word) != digits(&candidate) {
        None
    } else if distance <= allowed && (begins_alike || swapped || shorter >= LONG) {
        Some(distance)
    } else if shorter >= SHORTEST_BEGINNING && (candidate.starts_with(&word) || word.starts_with(&candidate)) {
        Some(1)
    } else {
        None
    }
}

/// `max-duration` and `max_duration` count as the same word.
fn plain(word: &str) -> String {
    word.trim().to_lowercase().replace(['-', ' '], "_")
}

fn digits(word: &str) -> String {
    word.chars().filter(char::is_ascii_digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_find_their_word() {
        let known =
            ["commands", "env", "files", "max_duration", "name", "logs", "ps", "run", "status", "start", "stop"];
        for (slip, meant) in [
            ("comands", "commands"),
            ("ommands", "commands"),
            ("file", "files"),
            ("max-duration", "max_duration"),
            ("MaxDuration", "max_duration"),
            ("nmae", "name"),
            ("lgos", "logs"),
            ("sp", "ps"),
            ("rn", "run"),
            ("runn", "run"),
            ("stauts", "status"),
            ("statuses", "status"),
            ("stat", "status"),
            ("stpo", "stop"),
        ] {
            assert_eq!(nearest(slip, known), Some(meant), "{slip}");
        }
    }

    #[test]
    fn what_is_not_near_is_not_said() {
        for (word, known) in [
            ("top", &["stop", "status"][..]),
            ("gpu", &["cpu", "memory"]),
            ("zzz", &["commands", "env"]),
            ("nobody", &["noisy", "train"]),
            ("exp-17", &["exp-16", "exp-1"]),
            ("brain", &["train"]),
            ("pd", &["ps"]),
            ("exec", &["events", "extend"]),
            ("x", &["y", "xy"]),
            ("list", &["logs", "ps"]),
            ("s", &["start"]),
            ("", &["a"]),
        ] {
            assert_eq!(nearest(word, known.iter().copied()), None, "{word}");
        }
    }

    #[test]
    fn two_that_are_equally_near_are_both_said() {
        let known = ["start", "status", "stop"];
        assert_eq!(suggestion("sta", &known), "did you mean `start` or `status`?");
        assert_eq!(suggestion("zz", &known), "known: start, status, stop");
    }
}
