//! The timeline of a run: one row per span, its name and length above a bar. More spans than rows are drawn in groups that are next to each
//! other in time. Knows where bars are; what they stand for is said by the caller.

use super::{Tone, percent, shortened};
use maud::{Markup, html};
use model::time::show_duration;

/// Rows of a drawing: more are read by no one, and each costs about 400 bytes of the page.
pub(crate) const MOST_ROWS: usize = 40;

const NAME_CHARS: usize = 34;
/// Names are moved to the right by their depth, but not out of a narrow screen.
const MOST_INDENT: usize = 4;
const ROW_HEIGHT: usize = 28;
const AXIS_HEIGHT: usize = 24;

/// Something that took time, or still does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) name: String,
    /// Where its name leads.
    pub(crate) href: Option<String>,
    /// Below how many others it stands.
    pub(crate) depth: usize,
    pub(crate) tone: Tone,
    /// Its status, as the API says it.
    pub(crate) status: String,
    pub(crate) started_ms: i64,
    /// None: it goes on.
    pub(crate) ended_ms: Option<i64>,
}

/// Spans in the order in which they are shown, up to `now_ms`. Nothing if there are none.
pub(crate) fn timeline(spans: &[Span], now_ms: i64) -> Markup {
    let rows = rows(spans);
    let begin = rows.iter().map(|row| row.started_ms).min().unwrap_or(now_ms);
    let end = rows.iter().map(|row| row.ended_ms.unwrap_or(now_ms)).max().unwrap_or(now_ms).max(begin + 1);
    let whole = end.saturating_sub(begin);
    let height = AXIS_HEIGHT + rows.len() * ROW_HEIGHT;
    html! {
        @if !rows.is_empty() {
            svg class="drawing timeline" width="100%" height=(height) role="group" aria-label=(summary(spans, whole)) {
                @for tick in ticks(whole) {
                    line class="grid" x1=(percent(tick, whole)) x2=(percent(tick, whole)) y1=(AXIS_HEIGHT - 6) y2=(height) {}
                    text class="axis" x=(percent(tick, whole)) y=(AXIS_HEIGHT - 10) { (show_duration(tick)) }
                }
                @for (number, row) in rows.iter().enumerate() {
                    (bar(row, AXIS_HEIGHT + number * ROW_HEIGHT, begin, whole, now_ms))
                }
            }
        }
    }
}

fn bar(row: &Span, top: usize, begin: i64, whole: i64, now_ms: i64) -> Markup {
    let ended = row.ended_ms.unwrap_or(now_ms).max(row.started_ms);
    let took = show_duration(ended.saturating_sub(row.started_ms));
    let title = format!("{}: {}, {took}", row.name, row.status);
    let name = html! {
        title { (title) }
        rect class="row" x="0" y=(top) width="100%" height=(ROW_HEIGHT) {}
        text class="name" x=(row.depth.min(MOST_INDENT) * 12) y=(top + 13) {
            tspan class=(row.tone.class()) { (row.tone.mark()) } " " (shortened(&row.name, NAME_CHARS))
        }
        text class="value" x="100%" y=(top + 13) { (took) }
        rect class="track" x="0" y=(top + 18) width="100%" height="6" {}
        rect class={ "bar " (row.tone.class()) } x=(percent(row.started_ms.saturating_sub(begin), whole)) y=(top + 18)
            width=(percent(ended.saturating_sub(row.started_ms).max(whole / 400), whole)) height="6" rx="2" {}
    };
    html! {
        @match &row.href {
            Some(href) => a href=(href) { (name) },
            None => g { (name) },
        }
    }
}

/// At most `MOST_ROWS`: spans that begin after one another share a row if there are too many.
fn rows(spans: &[Span]) -> Vec<Span> {
    if spans.len() <= MOST_ROWS {
        return spans.to_vec();
    }
    let mut in_time: Vec<&Span> = spans.iter().collect();
    in_time.sort_by_key(|span| span.started_ms);
    in_time.chunks(spans.len().div_ceil(MOST_ROWS)).map(together).collect()
}

/// Several spans as one. It is as long as all of them, looks like the one that matters most and leads nowhere.
fn together(group: &[&Span]) -> Span {
    let (first, worst) = (group[0], group.iter().max_by_key(|span| span.tone).expect("a chunk is not empty"));
    if group.len() == 1 {
        return first.clone();
    }
    let alike = group.iter().filter(|span| span.tone == worst.tone).count();
    let ends = group.iter().map(|span| span.ended_ms).max().flatten();
    Span {
        name: format!("{} and {} more", first.name, group.len() - 1),
        href: None,
        depth: 0,
        tone: worst.tone,
        status: format!("{alike} of {} {}", group.len(), worst.status),
        started_ms: first.started_ms,
        ended_ms: if group.iter().any(|span| span.ended_ms.is_none()) { None } else { ends },
    }
}

fn summary(spans: &[Span], whole: i64) -> String {
    let failed = spans.iter().filter(|span| span.tone == Tone::Failed).count();
    let failed = if failed == 0 { String::new() } else { format!(", {failed} failed") };
    format!("Timeline: {} in {}{failed}", spans.len(), show_duration(whole))
}

/// Two to six round lengths, so that their labels fit on a narrow screen.
fn ticks(whole: i64) -> Vec<i64> {
    const STEPS: &[i64] = &[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000];
    const LONG: &[i64] = &[1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 1_440, 2_880, 10_080, 43_200];
    let steps = STEPS.iter().copied().chain(LONG.iter().map(|minutes| minutes * 60_000));
    let step = steps.into_iter().find(|step| whole / step < 5).unwrap_or(whole / 4);
    // The last one would stand beyond the edge.
    (0..5).map(|n| n * step).filter(|tick| tick.saturating_mul(100) <= whole.saturating_mul(88)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(name: &str, started_ms: i64, ended_ms: Option<i64>, tone: Tone) -> Span {
        let status = format!("{tone:?}").to_lowercase();
        Span { name: name.to_owned(), href: None, depth: 0, tone, status, started_ms, ended_ms }
    }

    #[test]
    fn a_bar_stands_where_its_time_was() {
        let spans = [span("fetch", 1_000, Some(2_000), Tone::Done), span("train", 2_000, None, Tone::Runs)];
        let drawn = timeline(&spans, 5_000).into_string();
        assert!(drawn.contains(r#"class="bar tone-done" x="0.00%" y="42" width="25.00%""#), "{drawn}");
        assert!(drawn.contains(r#"class="bar tone-runs" x="25.00%" y="70" width="75.00%""#), "{drawn}");
        assert!(drawn.contains("<title>train: runs, 3"), "{drawn}");
    }

    #[test]
    fn names_are_text_and_never_markup() {
        let mut hostile = span("<script>alert(1)</script>", 0, Some(1), Tone::Done);
        hostile.href = Some("/\"><script>".to_owned());
        let drawn = timeline(&[hostile], 1).into_string();
        assert!(!drawn.contains("<script"), "{drawn}");
        assert!(drawn.contains("/&quot;&gt;&lt;script&gt;"), "{drawn}");
    }

    #[test]
    fn more_spans_than_rows_are_drawn_in_groups_and_a_failure_stays_visible() {
        let mut spans: Vec<Span> =
            (0..100_000).map(|n| span(&format!("step {n}"), n, Some(n + 1), Tone::Done)).collect();
        spans[77_777].tone = Tone::Failed;
        spans[77_777].status = "failed".to_owned();
        let drawn = timeline(&spans, 0).into_string();
        assert_eq!(drawn.matches(r#"class="bar "#).count(), MOST_ROWS);
        assert_eq!(drawn.matches(r#"class="bar tone-failed"#).count(), 1);
        assert!(drawn.contains("1 of 2500 failed") && drawn.contains("Timeline: 100000 in"), "{:.300}", drawn);
        assert!(drawn.len() < 30_000, "{} bytes", drawn.len());
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert_eq!(timeline(&[], 5).into_string(), "");
    }

    proptest! {
        #[test]
        fn any_times_give_at_most_so_many_bars_inside_of_the_drawing(
            times in prop::collection::vec((any::<i64>(), any::<Option<i64>>()), 1..500), now in any::<i64>()
        ) {
            let times = times.into_iter().map(|(from, to)| (from / 4, to.map(|to| to / 4)));
            let spans: Vec<Span> = times.map(|(from, to)| span("s", from, to, Tone::Runs)).collect();
            let drawn = timeline(&spans, now / 4).into_string();
            prop_assert_eq!(drawn.clone(), timeline(&spans, now / 4).into_string());
            prop_assert!(drawn.matches(r#"class="bar "#).count() <= MOST_ROWS);
            prop_assert!(!drawn.contains("style=") && !drawn.contains("\"-"));
        }
    }
}
