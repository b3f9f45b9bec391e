//! Pieces that several pages use: states, times, amounts, commands, JSON, refusals. Text that a user or a run wrote is shown with its
//! control and direction characters made visible.

use crate::problem::Problem;
use maud::{Markup, html};
use model::time::{DAY, civil_date, show_duration};
use serde_json::Value;
use wire::api::{ErrorView, WhySpan};

/// HTML bytes of a JSON value on a page: four of them leave room for the rest of a page of 60 KB.
pub(crate) const SHOWN_JSON: usize = 8 * 1024;
/// HTML bytes of a text in a row of a list: a command, a name, a path, the message of an error. Forty rows of two leave room for the rest.
const SHORT: usize = 200;
/// HTML bytes of a text that stands once on a page: a command, a reason, the message of an error and its cause.
const LONG: usize = 1024;
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Text as it is, but for characters that would change how the text around them reads.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            '\u{7f}' => shown.push('␡'),
            c if c < ' ' => shown.push(char::from_u32(0x2400 + c as u32).unwrap_or('␦')),
            '\u{80}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' => shown.push_str(&format!("‹U+{:04X}›", c as u32)),
            c => shown.push(c),
        }
    }
    shown
}

/// A state: a word with a mark of its own, so that it needs no colour.
pub(crate) fn state(word: &str) -> Markup {
    html! { span.st data-s=(word) { (word.replace('_', " ")) } }
}

fn clock(at: i64) -> (String, String) {
    let (year, month, day) = civil_date(at.div_euclid(DAY));
    let seconds = at.rem_euclid(DAY) / 1000;
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let name = MONTHS[usize::try_from(month - 1).unwrap_or(0) % 12];
    (format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z"), format!("{day} {name} {h:02}:{m:02}"))
}

/// A moment. The script shows how long ago it was; without script it is a time in UTC.
pub(crate) fn time(at: i64) -> Markup {
    let (exact, short) = clock(at);
    html! { time datetime=(exact) title=(exact) data-age=(at) { (short) } }
}

/// How long something has taken, or takes since then.
pub(crate) fn lasted(from: Option<i64>, to: Option<i64>) -> Markup {
    match (from, to) {
        (Some(from), Some(to)) => html! { span.num { (show_duration((to - from).max(0))) } },
        (Some(from), None) => {
            let (exact, short) = clock(from);
            html! { time.num datetime=(exact) title=(format!("since {exact}")) data-since=(from) { "since " (short) } }
        }
        (None, _) => html! { span.quiet { "–" } },
    }
}

/// The same as text: day, hour and minute.
pub(crate) fn day_and_time(at: i64) -> String {
    clock(at).1
}

/// The hour and minute of an event, with seconds.
pub(crate) fn moment(at: i64) -> Markup {
    let (exact, _) = clock(at);
    html! { time.num datetime=(exact) title=(exact) { (exact[11..19]) } }
}

/// The same as text.
pub(crate) fn clock_time(at: i64) -> String {
    clock(at).0[11..19].to_owned()
}

pub(crate) fn duration(ms: Option<i64>) -> Markup {
    html! { span.num { @match ms { Some(ms) => (show_duration(ms.max(0))), None => "–" } } }
}

/// Credits without the zeros at their end.
pub(crate) fn credits(amount: &str) -> Markup {
    let shown = if amount.contains('.') { amount.trim_end_matches('0').trim_end_matches('.') } else { amount };
    html! { span.num { (shown) } }
}

pub(crate) fn bytes(size: i64) -> String {
    let mut size = size as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if size < 1024.0 {
            return if unit == "B" { format!("{size} B") } else { format!("{size:.1} {unit}") };
        }
        size /= 1024.0;
    }
    format!("{size:.1} TiB")
}

/// A number with its noun.
pub(crate) fn counted(number: i64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// How many there are so far, and how many are planned if there are more to come.
pub(crate) fn made_of(made: i64, planned: i64, one: &str, many: &str) -> String {
    if made < planned { format!("{made} of {}", counted(planned, one, many)) } else { counted(made, one, many) }
}

/// The summary of a `why`, or one of its facts, from this byte on. The script counts its durations on.
pub(crate) fn said(text: &str, from: usize, fact: Option<usize>, spans: &[WhySpan]) -> Markup {
    let of_it = |span: &&WhySpan| span.fact == fact.map(|fact| fact as i64) && span.start as usize >= from;
    let spans: Vec<&WhySpan> = spans.iter().filter(of_it).collect();
    if spans.is_empty() || is_long(&text[from..]) {
        return html! { (long(&text[from..])) };
    }
    let ends = std::iter::once(from).chain(spans.iter().map(|span| span.end as usize));
    html! {
        @for (before, span) in ends.clone().zip(&spans) {
            @let (start, end) = (span.start as usize, span.end as usize);
            (visible(&text[before..start]))
            @let exact = clock(span.since.or(span.until).unwrap_or_default()).0;
            time.num datetime=(exact) title=(exact) data-since=[span.since] data-until=[span.until] { (text[start..end]) }
        }
        (visible(&text[ends.last().unwrap_or(from)..]))
    }
}

/// A command to copy.
pub(crate) fn command(text: &str) -> Markup {
    html! { code.cli data-copy { (visible(text)) } }
}

/// A JSON value, as far as a page shows it, and where the whole is saved from.
pub(crate) fn json_or(value: &Value, download: &str) -> Markup {
    json_up_to(value, SHOWN_JSON, Some(download))
}

pub(crate) fn json_up_to(value: &Value, most: usize, download: Option<&str>) -> Markup {
    let text = match value {
        Value::String(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    };
    text_up_to(&text, most, download)
}

/// The beginning of a text that weighs at most this on a page, and where the whole is saved from.
pub(crate) fn text_up_to(text: &str, most: usize, download: Option<&str>) -> Markup {
    let end = cut(text, most);
    html! {
        pre.json tabindex="0" { (visible(&text[..end])) }
        @if end < text.len() {
            p.quiet { "The first " (bytes(end as i64)) " of " (bytes(text.len() as i64)) "."
                @if let Some(href) = download { " " a href=(href) download { "Download all of it" } } }
        }
    }
}

/// How much of a text fits into so many bytes of HTML.
pub(crate) fn cut(text: &str, most: usize) -> usize {
    let mut weight = 0;
    for (at, c) in text.char_indices() {
        weight += match c {
            '"' => 6,
            '&' => 5,
            '<' | '>' => 4,
            '\n' | '\t' | ' '..='~' => 1,
            // It may be shown as a mark.
            _ => visible(c.encode_utf8(&mut [0; 4])).len(),
        };
        if weight > most {
            return at;
        }
    }
    text.len()
}

/// The first words of a text that stands in a row of a list; the row leads to the rest.
pub(crate) fn short(text: &str) -> String {
    first_of(text, SHORT)
}

/// The same of a text that stands once on a page.
pub(crate) fn long(text: &str) -> String {
    first_of(text, LONG)
}

pub(crate) fn is_long(text: &str) -> bool {
    cut(text, LONG) < text.len()
}

pub(crate) fn is_short(text: &str) -> bool {
    cut(text, SHORT) == text.len()
}

fn first_of(text: &str, most: usize) -> String {
    let end = cut(text, most);
    let shown = visible(&text[..end]);
    if end < text.len() { shown + "…" } else { shown }
}

/// An error in a list: its first words.
pub(crate) fn error_in_short(error: &ErrorView) -> Markup {
    html! { div.error { strong { (short(&error.code.replace('_', " "))) } " " span { (short(&error.message)) } } }
}

/// An error, and where the whole of it is saved from if it is too long for a page.
pub(crate) fn error(error: &ErrorView, download: &str) -> Markup {
    let cut = is_long(&error.message) || error.cause.as_deref().is_some_and(is_long);
    html! {
        div.error {
            strong { (short(&error.code.replace('_', " "))) } " " span { (long(&error.message)) }
            @if let Some(cause) = &error.cause { pre.cause tabindex="0" { (long(cause)) } }
            @if cut { p { a href=(download) download { "Download all of it" } } }
        }
    }
}

/// Names and values side by side; those without a value are left out.
pub(crate) fn facts(rows: Vec<(&str, Option<Markup>)>) -> Markup {
    html! {
        dl.facts {
            @for (name, value) in rows {
                @if let Some(value) = value { div { dt { (name) } dd { (value) } } }
            }
        }
    }
}

/// A button of the page's one form. `seen` says which state it was shown for.
pub(crate) fn button(label: &str, action: &str, class: &str) -> Markup {
    html! { button class=(class) type="submit" form="act" formaction=(action) { (label) } }
}

/// Where a listing goes on.
pub(crate) fn more(path: &str, next: Option<&str>, first: bool) -> Markup {
    more_of(path, "cursor", "Further entries", (next, first))
}

/// The same of one of several listings on a page: each has a cursor of its own name.
pub(crate) fn more_of(path: &str, cursor: &str, label: &str, (next, first): (Option<&str>, bool)) -> Markup {
    let joint = if path.contains('?') { '&' } else { '?' };
    html! {
        @if next.is_some() || !first {
            nav.pages aria-label=(label) {
                @if !first { a href=(path) { "First page" } }
                @if let Some(next) = next { a rel="next" href=(format!("{path}{joint}{cursor}={next}")) { "Next page" } }
            }
        }
    }
}

/// A refusal; `now_at` is where what it is about is shown as it is now.
pub(crate) fn problem(problem: &Problem, now_at: Option<&str>) -> Markup {
    html! {
        section.card.refusal {
            h1 { (problem.status().as_u16()) " " (problem.status().canonical_reason().unwrap_or("Error")) }
            p { (visible(problem.detail())) }
            @if let Some(fix) = problem.fix_text() { p { strong { "What helps: " } (visible(fix)) } }
            @if let Some(now_at) = now_at { p { a href=(now_at) { "Look at it as it is now" } } }
            p { a href="/" { "To the runs" } }
        }
    }
}

pub(crate) fn stale_form() -> Markup {
    html! {
        h1 { "This form is old" }
        p { "It belongs to another session, so nothing was done. " a href="/" { "Open the pages again" } " and repeat it." }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_mislead_are_shown() {
        assert_eq!(visible("a\u{202e}b\u{1b}[31m\u{0}\n\tç"), "a‹U+202E›b␛[31m␀\n\tç");
    }

    #[test]
    fn a_text_is_cut_by_what_it_weighs_as_html() {
        for (text, most, end) in [("abc", 3, 3), ("abc", 2, 2), ("\"\"\"", 12, 2), ("é\u{202e}", 13, 2), ("", 0, 0)] {
            assert_eq!(cut(text, most), end, "{text:?}");
        }
        let value = Value::String("<\u{202e}\"é\u{1}".repeat(9_000));
        let shown = json_or(&value, "/all").into_string();
        assert!((SHOWN_JSON / 3..SHOWN_JSON + 200).contains(&shown.len()), "{}", shown.len());
        assert!(
            shown.contains(r#"<a href="/all" download>"#) && shown.contains("of 70.3 KiB"),
            "{}",
            &shown[shown.len() - 200..]
        );
    }

    #[test]
    fn amounts_and_times_are_short() {
        assert_eq!(credits("1.500000").into_string(), r#"<span class="num">1.5</span>"#);
        assert_eq!(credits("100").into_string(), r#"<span class="num">100</span>"#);
        assert_eq!(clock(1_794_731_405_000), ("2026-11-15T08:30:05Z".into(), "15 Nov 08:30".into()));
        assert_eq!(bytes(1536), "1.5 KiB");
    }
}
