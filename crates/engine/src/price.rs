//! What turns of models and the steps of programs cost, and the version of all prices. Of models: the most that a turn may cost before it begins, and what it did cost when it has ended.

use crate::EngineContext;
use crate::run_tx::RunTx;
use adapters::ToolUsage;
use adapters::tool::llm::Models;
use model::hierarchy::Rows;
use model::spec::Resources;
use model::step::{Asked, Step, StepStatus, StepUsage};
use model::usage::Usage;
use model::{Credits, Failure, Refused, StepId, bug};
use serde_json::Value;
use store::usage::Spent;

/// For a million tokens of a model without a price: one credit, which is 0.001 for 1,000.
const DEFAULT_PRICE: Credits = Credits::whole(1);
/// A byte of text is at most half a token.
const BYTES_PER_TOKEN: i64 = 2;
/// Mostly it is a quarter of one.
const LIKELY_BYTES_PER_TOKEN: i64 = 4;
/// Tokens of the context of a model that the settings do not know.
const UNKNOWN_CONTEXT: i64 = 128_000;
const UNKNOWN_OUTPUT: i64 = 4_096;
/// A warning is published when this share of the budget is used, in percent.
const WARN_PERCENT: i64 = 80;

fn cost(tokens: i64, per_million: Credits) -> Credits {
    let micro = (i128::from(tokens.max(0)) * i128::from(per_million.micro()) + 999_999) / 1_000_000;
    Credits(i64::try_from(micro).unwrap_or(i64::MAX))
}

struct Prices {
    context: i64,
    output: i64,
    input_price: Credits,
    output_price: Credits,
}

fn prices(models: &Models, model: &str) -> Prices {
    match models.find(model) {
        Ok(found) => Prices {
            context: found.limits.context,
            output: found.limits.default_output_tokens(),
            input_price: found.limits.input_price.unwrap_or(DEFAULT_PRICE),
            output_price: found.limits.output_price.unwrap_or(DEFAULT_PRICE),
        },
        Err(_) => Prices {
            context: UNKNOWN_CONTEXT,
            output: UNKNOWN_OUTPUT,
            input_price: DEFAULT_PRICE,
            output_price: DEFAULT_PRICE,
        },
    }
}

/// The version of the table of prices that is in force: of models, of calls of tools, and of a machine of each provider and region that is
/// asked for nothing special.
pub(crate) fn version(context: &EngineContext) -> String {
    let mut others = String::new();
    for (tool, price) in context.config.tool_prices.all() {
        others.push_str(&format!("tool {tool} {price}\n"));
    }
    for (name, listing) in context.providers.all().iter() {
        for region in listing.provider.capabilities().regions {
            let price = listing.provider.price(&Resources::default(), &region, false);
            others.push_str(&format!("machine {name} {region} {price}\n"));
        }
    }
    context.models.price_version(DEFAULT_PRICE, &others)
}

/// What is set aside before a turn.
pub(crate) fn most_of_turn(models: &Models, input: &Value) -> Credits {
    let prices = prices(models, input["model"].as_str().unwrap_or("default"));
    let prompt = (input.to_string().len() as i64 / BYTES_PER_TOKEN).min(prices.context);
    let answer = input["max_output_tokens"].as_i64().unwrap_or(prices.output);
    cost(prompt, prices.input_price) + cost(answer, prices.output_price)
}

/// What a turn asks for, by our estimate.
pub(crate) fn asked(input: &Value) -> Asked {
    let of = input["model"].as_str().unwrap_or("default").to_owned();
    Asked { of, tokens: input.to_string().len() as i64 / LIKELY_BYTES_PER_TOKEN }
}

fn cost_of(models: &Models, usage: &ToolUsage) -> Credits {
    let prices = prices(models, &usage.of);
    cost(usage.input_tokens, prices.input_price) + cost(usage.output_tokens, prices.output_price)
}

/// The step of the plan that a turn belongs to.
fn counted_under(step: &Step) -> StepId {
    step.parent.unwrap_or(step.id)
}

/// The settings' table of a model: `llm.default` of `default/small`.
fn endpoint(model: &str) -> String {
    format!("llm.{}", model.split_once('/').map_or(model, |(name, _)| name))
}

impl RunTx<'_> {
    /// Whether so much can be set aside for a step: from what the run has reserved, or from what its budget and its org still have.
    pub(crate) fn can_hold(&mut self, step: &Step, most: Credits) -> Result<bool, Failure> {
        let free = |attempt: &model::attempt::Attempt| attempt.left() - attempt.tree.held;
        let missing = most - free(&self.attempt()?.it);
        if missing > Credits::ZERO {
            let key = format!("{}:{}:{}:{}:hold", self.run.id, self.run.attempt, step.id, step.tries + 1);
            self.reserve_step(missing, key)?;
        }
        Ok(free(&self.attempt()?.it) >= most)
    }

    /// Sets the most that a step may cost aside, when it begins.
    pub(crate) fn hold_step(&mut self, step: &Step, most: Credits) -> Result<(), Failure> {
        if most.is_zero() {
            return Ok(());
        }
        let mut attempt = Rows::attempt(self)?;
        attempt.tree.held = attempt.tree.held + most;
        Rows::set_attempt(self, attempt)?;
        Rows::set_step(self, Step { held: most, ..step.clone() });
        Ok(())
    }

    /// A try has ended: what it used is charged, once for each try. `calls`: those of tools that its answer asks for.
    pub(crate) fn charge_step(&mut self, step: &Step, used: &ToolUsage, calls: i64) -> Result<(), Failure> {
        let amount = cost_of(&self.context.models, used);
        let mut agent = Rows::agent(self, step.agent)?;
        agent.tokens += used.input_tokens + used.output_tokens;
        let spent = Spent {
            subject: counted_under(step).0,
            agent: agent.name.clone(),
            model: used.of.clone(),
            provider: endpoint(&used.of),
            usage: Usage {
                turns: 1,
                calls,
                estimated: used.estimated.into(),
                input_tokens: used.input_tokens,
                output_tokens: used.output_tokens,
                ..Usage::default()
            },
            ..self.spent()
        };
        Rows::set_agent(self, agent);
        let memo = format!("llm {}, prices {}", used.of, version(self.context));
        let charged = self.charge_try(step, amount, &memo, spent)?;
        let before = step.usage.clone().unwrap_or_default();
        let usage = StepUsage {
            of: used.of.clone(),
            input_tokens: before.input_tokens + used.input_tokens,
            output_tokens: before.output_tokens + used.output_tokens,
            estimated: before.estimated || used.estimated,
            charged: before.charged + charged,
        };
        Rows::set_step(self, Step { usage: Some(usage), ..step.clone() });
        Ok(())
    }

    /// A turn that was cut off, whose time was up, or whose holder died: its model was asked, and only `said` bytes of its answer are
    /// known.
    pub(crate) fn charge_unanswered(&mut self, step: &Step, said: i64) -> Result<(), Failure> {
        let Some(Asked { of, tokens }) = step.asked.clone() else { return Ok(()) };
        let output_tokens = (said + LIKELY_BYTES_PER_TOKEN - 1) / LIKELY_BYTES_PER_TOKEN;
        let used = ToolUsage { of, input_tokens: tokens, output_tokens, estimated: true };
        self.charge_step(step, &used, 0)
    }

    /// What a program says that its step has cost, within what was set aside for it.
    pub(crate) fn charge_program(&mut self, step: &Step, cost: Credits) -> Result<(), Failure> {
        if cost.is_zero() {
            return Ok(());
        }
        let most = step.held - step.call_price;
        if cost > most {
            let why = format!("{most} credits were set aside for it (`max_cost`)");
            return Err(Refused::invalid("cost", why).into());
        }
        let agent = Rows::agent(self, step.agent)?.name;
        let spent = Spent { subject: step.id.0, agent, ..self.spent() };
        let charged = self.charge_try(step, cost, "a step of a program", spent)?;
        let before = step.usage.clone().unwrap_or_default();
        let usage = StepUsage { charged: before.charged + charged, ..before };
        Rows::set_step(self, Step { usage: Some(usage), ..step.clone() });
        Ok(())
    }

    pub(crate) fn charge_try(
        &mut self,
        step: &Step,
        amount: Credits,
        memo: &str,
        spent: Spent,
    ) -> Result<Credits, Failure> {
        let key = format!("{}:{}:{}:{}", self.run.id, self.run.attempt, step.id, step.tries);
        let charged = self.charge(amount, key, memo, spent)?;
        if !charged.is_zero() && self.is_repeated(step)? {
            let mut attempt = Rows::attempt(self)?;
            attempt.tree.retried_cost = attempt.tree.retried_cost + charged;
            Rows::set_attempt(self, attempt)?;
        }
        Ok(charged)
    }

    /// Whether the present try is another one of the step, of its task or of its agent. A turn or a call that is tried again inside its
    /// dialogue is none: as an error that a model is told, it uses up no retry of the run.
    fn is_repeated(&mut self, step: &Step) -> Result<bool, Failure> {
        let of_plan = Rows::step(self, counted_under(step))?;
        let (task, agent) = (Rows::task(self, step.task)?, Rows::agent(self, step.agent)?);
        Ok(of_plan.tries > 1 || task.tries > 1 || agent.tries > 1)
    }

    /// Once, when the charges of the run pass the share of its budget.
    pub(crate) fn warn_of_budget(&mut self, before: Credits, after: Credits) -> Result<(), Failure> {
        let Some(budget) = self.run.spec.budget else { return Ok(()) };
        let spent = self.spent_before()?;
        let line = Credits(budget.micro() / 100 * WARN_PERCENT);
        if spent + before < line && spent + after >= line {
            let body = store::body!({ "budget": budget.to_string(), "charged": (spent + after).to_string() });
            self.publish("run.budget_warning", body);
        }
        Ok(())
    }

    /// Nothing stays set aside for a step that does not run any more: what begins next in the same commit may need it.
    pub(crate) fn release_hold(&mut self, step: Step) -> Result<Step, Failure> {
        if step.held.is_zero() || step.status == StepStatus::Running || bug!(step_hold_kept) {
            return Ok(step);
        }
        let mut attempt = Rows::attempt(self)?;
        attempt.tree.held = attempt.tree.held - step.held;
        Rows::set_attempt(self, attempt)?;
        Ok(Step { held: Credits::ZERO, ..step })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adapters::tool::llm::{LlmModel, LlmSettings};
    use serde_json::json;
    use std::collections::BTreeMap;

    #[test]
    fn a_turn_costs_at_most_its_prompt_and_its_longest_answer() {
        let price = |credits: i64| Some(Credits::whole(credits));
        let small = LlmModel { context: 1_000, input_price: price(2), output_price: price(8) };
        let settings = LlmSettings::at("http://a/v1".into(), BTreeMap::from([("small".to_owned(), small)]));
        let models = Models(BTreeMap::from([("default".to_owned(), settings)]));
        let input = |text: &str| json!({ "model": "default", "messages": [{ "role": "user", "content": text }] });
        // The answer is bounded by a quarter of the context: 250 tokens at 8 micro-credits.
        let bytes = input("hello").to_string().len() as i64;
        assert_eq!(most_of_turn(&models, &input("hello")), Credits(bytes / 2 * 2 + 250 * 8));
        assert_eq!(
            most_of_turn(&models, &input(&"x".repeat(100_000))),
            Credits(1_000 * 2 + 250 * 8),
            "the context bounds it"
        );
        let used = |of: &str| ToolUsage { of: of.into(), input_tokens: 10, output_tokens: 5, estimated: false };
        assert_eq!(cost_of(&models, &used("default/small")), Credits(60));
        assert_eq!(cost_of(&models, &used("unknown")), Credits(15), "the default price");
        assert_eq!(cost(1, Credits(1)), Credits(1), "rounded up");
    }

    #[test]
    fn another_price_is_another_version_of_the_table() {
        let models = |input: Option<Credits>, output: Option<Credits>, context: i64| {
            let model = LlmModel { context, input_price: input, output_price: output };
            let settings = LlmSettings::at("http://a/v1".into(), BTreeMap::from([("small".to_owned(), model)]));
            Models(BTreeMap::from([("default".to_owned(), settings)]))
        };
        let of = |input, output, context| models(input, output, context).price_version(DEFAULT_PRICE, "");
        let one = of(Some(Credits(1)), None, 8_000);
        assert!(one.len() == 8 && one.bytes().all(|byte| byte.is_ascii_hexdigit()), "{one}");
        assert_eq!(one, of(Some(Credits(1)), Some(DEFAULT_PRICE), 9_000), "what is charged is the same");
        for other in [of(Some(Credits(2)), None, 8_000), of(None, Some(Credits(1)), 8_000), of(None, None, 8_000)] {
            assert_ne!(one, other);
        }
        let priced = models(Some(Credits(1)), None, 8_000).price_version(DEFAULT_PRICE, "tool http 1\n");
        assert_ne!(one, priced, "tools and machines belong to the table");
    }
}
