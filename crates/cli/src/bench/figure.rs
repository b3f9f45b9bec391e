//! One measured figure: its value, what it is compared with, their ratio, and the goal it meets or misses. Shows itself as a
//! line of a table and as JSON; a missed goal looks like one.

use crate::show::{self, Colour, Table};
use serde::Serialize;

/// The middle of several repeats, and how far they lay apart.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(values: &[f64]) -> Spread {
        let sorted = sorted(values);
        Spread { median: quantile(&sorted, 0.5), min: quantile(&sorted, 0.0), max: quantile(&sorted, 1.0) }
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Of values in order; the nearest one that is there.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n => sorted[((n - 1) as f64 * q).round() as usize],
    }
}

pub fn percentile(values: &[f64], q: f64) -> f64 {
    quantile(&sorted(values), q)
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    fn is_met(self, by: f64) -> bool {
        match self {
            Goal::AtMost(limit) => by <= limit,
            Goal::AtLeast(limit) => by >= limit,
        }
    }
    fn text(self) -> String {
        match self {
            Goal::AtMost(limit) => format!("<= {}", plain(limit)),
            Goal::AtLeast(limit) => format!(">= {}", plain(limit)),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Figure {
    pub name: &'static str,
    pub what: String,
    pub unit: &'static str,
    pub value: Spread,
    /// What it is compared with, measured in the same repeats.
    pub beside: Option<(String, Spread)>,
    pub ratio: Option<Spread>,
    /// For the ratio, or for the value where there is none.
    pub goal: Option<Goal>,
}

impl Figure {
    pub fn new(name: &'static str, what: impl Into<String>, unit: &'static str, values: &[f64]) -> Figure {
        Figure { name, what: what.into(), unit, value: Spread::of(values), beside: None, ratio: None, goal: None }
    }

    /// Each repeat's value over the same repeat's comparison.
    pub fn beside(mut self, what: impl Into<String>, values: &[f64], others: &[f64]) -> Figure {
        let ratios: Vec<f64> = values.iter().zip(others).map(|(value, other)| value / other).collect();
        self.beside = Some((what.into(), Spread::of(others)));
        self.ratio = Some(Spread::of(&ratios));
        self
    }

    pub fn goal(mut self, goal: Goal) -> Figure {
        self.goal = Some(goal);
        self
    }

    pub fn is_met(&self) -> Option<bool> {
        self.goal.map(|goal| goal.is_met(self.ratio.map_or(self.value.median, |ratio| ratio.median)))
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "bench": self.name,
            "figure": self.what,
            "unit": self.unit,
            "value": self.value,
            "beside": self.beside.as_ref().map(|(what, values)| serde_json::json!({ "what": what, "value": values })),
            "ratio": self.ratio,
            "goal": self.goal.map(Goal::text),
            "goal_is_for": self.goal.map(|_| if self.ratio.is_some() { "ratio" } else { "value" }),
            "met": self.is_met(),
        })
    }
}

pub fn json(figures: &[Figure]) -> Vec<serde_json::Value> {
    figures.iter().map(Figure::json).collect()
}

pub fn print(figures: &[Figure]) {
    let mut table = Table::new(["BENCH", "FIGURE", "VALUE", "BESIDE IT", "RATIO", "GOAL", "MET"]);
    for figure in figures {
        let ratio = figure.ratio.map_or("-".into(), |ratio| format!("{} ({})", plain(ratio.median), range(ratio)));
        table.row([
            figure.name.to_owned(),
            figure.what.clone(),
            shown(figure.value, figure.unit),
            figure
                .beside
                .as_ref()
                .map_or("-".into(), |(what, value)| format!("{what}: {}", shown(*value, figure.unit))),
            ratio,
            figure.goal.map_or("-".into(), Goal::text),
            match figure.is_met() {
                None => "-".into(),
                Some(true) => show::paint(Colour::Green, "yes"),
                Some(false) => show::paint(Colour::Red, "NO"),
            },
        ]);
    }
    table.print("nothing was measured");
}

fn shown(spread: Spread, unit: &str) -> String {
    format!("{} {unit} ({})", plain(spread.median), range(spread))
}

fn range(spread: Spread) -> String {
    format!("{}–{}", plain(spread.min), plain(spread.max))
}

/// Three digits that say something.
fn plain(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_ends_of_repeats() {
        let spread = Spread::of(&[5.0, 1.0, 9.0, 3.0, 2.0]);
        assert_eq!((spread.median, spread.min, spread.max), (3.0, 1.0, 9.0));
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 0.99), 99.0);
    }

    #[test]
    fn a_ratio_is_taken_within_each_repeat() {
        // Both slow down together in the second repeat: the ratio does not notice.
        let (ours, theirs) = ([10.0, 40.0, 12.0], [5.0, 20.0, 6.0]);
        let figure = Figure::new("x", "y", "ms", &ours).beside("z", &ours, &theirs);
        let ratio = figure.ratio.unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (2.0, 2.0, 2.0));
        assert_eq!(figure.clone().goal(Goal::AtMost(2.0)).is_met(), Some(true));
        assert_eq!(figure.clone().goal(Goal::AtMost(1.9)).is_met(), Some(false));
        assert_eq!(figure.goal(Goal::AtLeast(2.1)).is_met(), Some(false));
    }

    #[test]
    fn a_goal_without_a_comparison_is_for_the_value() {
        let figure = Figure::new("x", "y", "MB", &[3.0, 2.0, 4.0]);
        assert_eq!(figure.is_met(), None);
        assert_eq!(figure.goal(Goal::AtMost(3.0)).is_met(), Some(true));
    }
}
