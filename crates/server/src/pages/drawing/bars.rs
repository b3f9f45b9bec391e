//! Bars for amounts: rows for names (what a model, a run or an agent cost), columns for days. The caller says how an amount is written.

use super::{percent, shortened};
use maud::{Markup, html};

/// Rows that are drawn; the rest is one row.
pub(crate) const MOST_ROWS: usize = 20;
/// Two months of days.
pub(crate) const MOST_COLUMNS: usize = 62;

const NAME_CHARS: usize = 28;
const ROW_HEIGHT: usize = 28;
const COLUMNS_HEIGHT: i64 = 96;
const LABEL_HEIGHT: i64 = 18;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) name: String,
    pub(crate) href: Option<String>,
    /// Never drawn below 0.
    pub(crate) value: i64,
}

/// One row per amount, in the order given. `what` says what is compared, `written` how an amount is written.
pub(crate) fn rows(what: &str, amounts: &[Amount], written: impl Fn(i64) -> String) -> Markup {
    let amounts = with_others(amounts);
    let most = amounts.iter().map(|amount| amount.value).max().unwrap_or(0);
    html! {
        @if !amounts.is_empty() {
            svg class="drawing bars" width="100%" height=(amounts.len() * ROW_HEIGHT) role="group" aria-label=(what) {
                @for (number, amount) in amounts.iter().enumerate() {
                    @match &amount.href {
                        Some(href) => a href=(href) { (row(amount, number * ROW_HEIGHT, most, &written)) },
                        None => g { (row(amount, number * ROW_HEIGHT, most, &written)) },
                    }
                }
            }
        }
    }
}

fn row(amount: &Amount, top: usize, most: i64, written: &impl Fn(i64) -> String) -> Markup {
    html! {
        title { (amount.name) ": " (written(amount.value)) }
        rect class="row" x="0" y=(top) width="100%" height=(ROW_HEIGHT) {}
        text class="name" x="0" y=(top + 13) { (shortened(&amount.name, NAME_CHARS)) }
        text class="value" x="100%" y=(top + 13) { (written(amount.value)) }
        rect class="track" x="0" y=(top + 18) width="100%" height="6" {}
        rect class="bar" x="0" y=(top + 18) width=(percent(amount.value, most)) height="6" rx="2" {}
    }
}

/// At most `MOST_ROWS`; the last one is the sum of what is left out.
fn with_others(amounts: &[Amount]) -> Vec<Amount> {
    if amounts.len() <= MOST_ROWS {
        return amounts.to_vec();
    }
    let (shown, others) = amounts.split_at(MOST_ROWS - 1);
    let value = others.iter().fold(0_i64, |sum, amount| sum.saturating_add(amount.value));
    let others = Amount { name: format!("{} others", others.len()), href: None, value };
    [shown, &[others]].concat()
}

/// One column per day, the oldest on the left; the newest if there are too many. The first, the highest and the last are labelled.
pub(crate) fn columns(what: &str, days: &[Amount], written: impl Fn(i64) -> String) -> Markup {
    let days = &days[days.len().saturating_sub(MOST_COLUMNS)..];
    let most = days.iter().map(|day| day.value).max().unwrap_or(0);
    let count = days.len() as i64;
    let height = COLUMNS_HEIGHT + 2 * LABEL_HEIGHT;
    html! {
        @if let (Some(first), Some(last)) = (days.first(), days.last()) {
            svg class="drawing columns" width="100%" height=(height) role="img" aria-label=(described(what, days, most, &written)) {
                text class="axis" x="0" y="12" { "at most " (written(most)) }
                line class="grid" x1="0" x2="100%" y1=(LABEL_HEIGHT) y2=(LABEL_HEIGHT) {}
                @for (number, day) in days.iter().enumerate() {
                    g {
                        title { (day.name) ": " (written(day.value)) }
                        // The whole height answers to the pointer, however small the column is.
                        rect class="row" x=(percent(number as i64, count)) y=(LABEL_HEIGHT) width=(percent(1, count)) height=(COLUMNS_HEIGHT) {}
                        rect class="bar" x=(percent(number as i64 * 10 + 1, count * 10)) y=(LABEL_HEIGHT + COLUMNS_HEIGHT - tall(day.value, most))
                            width=(percent(8, count * 10)) height=(tall(day.value, most)) {}
                    }
                }
                line class="grid" x1="0" x2="100%" y1=(LABEL_HEIGHT + COLUMNS_HEIGHT) y2=(LABEL_HEIGHT + COLUMNS_HEIGHT) {}
                text class="axis" x="0" y=(height - 4) { (first.name) }
                @if days.len() > 1 { text class="axis last" x="100%" y=(height - 4) { (last.name) } }
            }
        }
    }
}

/// In pixels; what is more than nothing is visible.
fn tall(value: i64, most: i64) -> i64 {
    let tall = i128::from(value.max(0)) * i128::from(COLUMNS_HEIGHT) / i128::from(most.max(1));
    if value > 0 { (tall as i64).clamp(1, COLUMNS_HEIGHT) } else { 0 }
}

fn described(what: &str, days: &[Amount], most: i64, written: &impl Fn(i64) -> String) -> String {
    let highest = days.iter().find(|day| day.value == most).map_or("", |day| day.name.as_str());
    format!("{what}: {} days, at most {} on {highest}", days.len(), written(most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn amounts(values: &[i64]) -> Vec<Amount> {
        let named = values.iter().enumerate();
        named.map(|(n, value)| Amount { name: format!("<{n}>"), href: None, value: *value }).collect()
    }

    fn credits(value: i64) -> String {
        format!("{value} cr")
    }

    #[test]
    fn a_bar_is_as_long_as_its_part_of_the_longest() {
        let drawn = rows("Cost by model", &amounts(&[200, 50, 0]), credits).into_string();
        for width in ["100.00%", "25.00%", "0.00%"] {
            assert!(drawn.contains(&format!(r#"width="{width}" height="6" rx="2""#)), "{width}: {drawn}");
        }
        assert!(drawn.contains("&lt;1&gt;: 50 cr") && !drawn.contains("<1>"), "{drawn}");
    }

    #[test]
    fn what_is_left_out_is_summed() {
        let drawn = rows("Cost by run", &amounts(&[1; 120]), credits).into_string();
        assert!(drawn.contains("101 others: 101 cr"), "{drawn}");
        assert_eq!(drawn.matches(r#"class="bar""#).count(), MOST_ROWS);
    }

    #[test]
    fn days_stand_beside_each_other_and_the_newest_stay() {
        let drawn = columns("Cost by day", &amounts(&[5; 100]), credits).into_string();
        assert_eq!(drawn.matches(r#"class="bar""#).count(), MOST_COLUMNS);
        assert!(drawn.contains("&lt;99&gt;: 5 cr") && !drawn.contains("&lt;37&gt;: 5 cr"), "{drawn}");
        assert!(drawn.contains("Cost by day: 62 days, at most 5 cr on &lt;38&gt;"), "{drawn}");
    }

    proptest! {
        #[test]
        fn any_amounts_are_drawn_inside_of_their_place(values in prop::collection::vec(any::<i64>(), 0..80)) {
            let drawn = [rows("a", &amounts(&values), credits), columns("b", &amounts(&values), credits)];
            for drawn in drawn.map(maud::PreEscaped::into_string) {
                prop_assert!(!drawn.contains("\"-") && !drawn.contains("style="), "{}", drawn);
            }
        }
    }
}
