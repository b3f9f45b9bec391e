//! Routes of usage: of a run with its agents, models and steps, and of the org within a span.

use crate::auth::Reader;
use crate::problem::HandlerResult;
use crate::routes::{Paging, Path, Query, id};
use crate::{Shared, now_ms};
use axum::Json;
use axum::extract::State;
use engine::usage::{Groups, OrgUsage, RunUsage, StepUsed};
use model::time::DAY;
use model::usage::{Usage, UsageBy};
use model::{Refused, RunId, StepId, Timestamp};
use serde::Deserialize;
use wire::api::{RunUsageView, StepUsageView, UsageGroup, UsageGroups, UsageSums, UsageView};

const DEFAULT_SPAN_MS: i64 = 30 * DAY;
/// Longer spans are cut, so that a request reads a bounded part of the sums.
const LONGEST_SPAN_MS: i64 = 400 * DAY;

pub(crate) async fn of_run(
    State(state): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(paging): Query<Paging>,
) -> HandlerResult<Json<RunUsageView>> {
    let (limit, after) = (paging.limit()?, StepId(paging.after()?));
    let run: RunId = id("run", &run)?;
    let usage = state.engine.run_usage(reader.org(), run, after, limit).await?;
    Ok(Json(run_view(run, &usage, limit)))
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Span {
    /// What it is summed by: run (unless given), agent, model, provider or day.
    by: Option<String>,
    /// Unix milliseconds; 30 days before the end unless given, at most 400.
    since_ms: Option<i64>,
    /// Unix milliseconds; now unless given.
    until_ms: Option<i64>,
}

impl Span {
    pub(crate) fn by(word: &str) -> Span {
        Span { by: Some(word.to_owned()), ..Span::default() }
    }
}

pub(crate) async fn of_org(
    State(state): State<Shared>,
    reader: Reader,
    Query(span): Query<Span>,
) -> HandlerResult<Json<UsageView>> {
    let by = span.by.as_deref().unwrap_or("run").parse();
    let by: UsageBy = by.map_err(|e: model::string_enum::UnknownWord| Refused::invalid("by", e.to_string()))?;
    let to = span.until_ms.unwrap_or_else(now_ms).clamp(0, now_ms());
    let from = span.since_ms.unwrap_or(to - DEFAULT_SPAN_MS).clamp((to - LONGEST_SPAN_MS).max(0), to);
    let usage = state.engine.org_usage(reader.org(), Timestamp(from), Timestamp(to), by).await?;
    Ok(Json(org_view(by, &usage)))
}

fn run_view(run: RunId, usage: &RunUsage, limit: i64) -> RunUsageView {
    let named = |groups: &Groups| shown(groups, |name| (some(name), None));
    let full = usage.steps.len() as i64 == limit;
    RunUsageView {
        run: run.to_string(),
        prices: usage.prices.clone(),
        total: sums(&usage.total),
        agents: named(&usage.agents),
        models: named(&usage.models),
        providers: named(&usage.providers),
        beside_steps: sums(&usage.beside_steps),
        next_cursor: usage.steps.last().filter(|_| full).map(|last| model::slug(last.id.0)),
        steps: usage.steps.iter().map(step).collect(),
    }
}

fn step(used: &StepUsed) -> StepUsageView {
    let identity = used.step.as_ref().and_then(|step| step.identity.as_deref());
    // The generation behind `#` is the journal's.
    let path = identity.map(|identity| identity.rsplit_once('#').map_or(identity, |(path, _)| path));
    let name = used.step.as_ref().map_or("", |step| step.name.as_str());
    StepUsageView {
        step: used.id.to_string(),
        attempt: used.step.as_ref().map_or(0, |step| step.attempt),
        path: path.unwrap_or(name).to_owned(),
        model: some(&used.model),
        usage: sums(&used.usage),
    }
}

fn org_view(by: UsageBy, usage: &OrgUsage) -> UsageView {
    let number = |text: &str| text.parse::<i64>().unwrap_or(0);
    let key = |name: &str| match by {
        UsageBy::Run => (
            Some(RunId(number(name))).filter(|run| run.0 > 0).map(|run| run.to_string()),
            usage.names.get(name).cloned(),
        ),
        UsageBy::Day => (Some(Timestamp(number(name)).date()), None),
        UsageBy::Agent | UsageBy::Model | UsageBy::Provider => (some(name), None),
    };
    UsageView {
        from: usage.from.ms(),
        to: usage.to.ms(),
        by: by.to_string(),
        total: sums(&usage.total),
        groups: shown(&usage.groups, key),
    }
}

fn shown(groups: &Groups, key: impl Fn(&str) -> (Option<String>, Option<String>)) -> UsageGroups {
    let group = |(name, usage): &(String, Usage)| {
        let (key, name) = key(name);
        UsageGroup { key, name, usage: sums(usage) }
    };
    UsageGroups { groups: groups.shown.iter().map(group).collect(), others: groups.others.as_ref().map(sums) }
}

fn some(name: &str) -> Option<String> {
    Some(name).filter(|name| !name.is_empty()).map(str::to_owned)
}

fn sums(usage: &Usage) -> UsageSums {
    UsageSums {
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        turns: usage.turns,
        estimated_turns: usage.estimated,
        tool_calls: usage.calls,
        machine_ms: usage.machine_ms,
        charged: usage.charged.to_string(),
        charged_micro: usage.charged.micro(),
    }
}
