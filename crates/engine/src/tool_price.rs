//! What calls of tools cost: a price for each call, by the kind of its tool. It is set aside when a try begins and charged when that try
//! ends, whatever came of it. What models and the steps of programs cost is not decided here.

use crate::run_tx::RunTx;
use model::hierarchy::{Ready, Rows};
use model::run::LastError;
use model::step::{Step, StepStatus, StepUsage, ToolKind};
use model::{Credits, Failure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use store::usage::Spent;

/// Kinds of tools whose calls may have a price. Models are charged by tokens; approvals and waits call nothing.
const PRICED: [ToolKind; 5] = [ToolKind::Http, ToolKind::Mcp, ToolKind::Exec, ToolKind::External, ToolKind::Command];

/// `[tools.prices]` of the settings: credits for one call, as decimal text. A kind that is not named is free.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct ToolPrices(BTreeMap<ToolKind, Credits>);

impl ToolPrices {
    pub fn of(&self, tool: ToolKind) -> Credits {
        self.0.get(&tool).copied().unwrap_or_default()
    }

    pub fn all(&self) -> &BTreeMap<ToolKind, Credits> {
        &self.0
    }
}

impl TryFrom<BTreeMap<String, String>> for ToolPrices {
    type Error = String;

    fn try_from(said: BTreeMap<String, String>) -> Result<ToolPrices, String> {
        let mut prices = BTreeMap::new();
        for (name, text) in said {
            let tool = PRICED.into_iter().find(|tool| tool.as_str() == name).ok_or_else(|| {
                let names = PRICED.map(ToolKind::as_str).join(", ");
                format!("tools.prices.{name}: no kind of tool whose calls have a price; choose from {names}")
            })?;
            let price = text.parse::<Credits>().map_err(|error| format!("tools.prices.{name}: {error}"))?;
            if price < Credits::ZERO {
                return Err(format!("tools.prices.{name}: a price is not negative"));
            }
            prices.insert(tool, price);
        }
        Ok(ToolPrices(prices))
    }
}

impl From<ToolPrices> for BTreeMap<String, String> {
    fn from(prices: ToolPrices) -> BTreeMap<String, String> {
        prices.0.into_iter().map(|(tool, price)| (tool.as_str().to_owned(), price.to_string())).collect()
    }
}

impl RunTx<'_> {
    pub(crate) fn call_price(&self, tool: ToolKind) -> Credits {
        self.context.config.tool_prices.of(tool)
    }

    /// `ready`, unless the price of the call that would begin cannot be set aside: then the step fails for it before anything is called.
    /// What is offered begins when a program takes it.
    pub(crate) fn if_affordable(&mut self, step: &Step, ready: Ready) -> Result<Ready, Failure> {
        let price = self.call_price(step.tool);
        if price.is_zero() || !matches!(ready, Ready::Go) || self.can_hold(step, price)? {
            return Ok(ready);
        }
        Ok(Ready::Unaffordable(cannot_be_paid(step.tool, price)))
    }

    /// Sets the price of the call aside, in the commit that begins it.
    pub(crate) fn hold_call(&mut self, step: &Step) -> Result<(), Failure> {
        let price = self.call_price(step.tool);
        if price.is_zero() || step.status != StepStatus::Running {
            return Ok(());
        }
        self.hold_step(step, price)?;
        let held = Rows::step(self, step.id)?;
        Rows::set_step(self, Step { call_price: price, ..held });
        Ok(())
    }

    /// `next` is what `before` becomes. If a try has ended with this, its call is charged: at the price that was set aside for it, once for
    /// each try.
    pub(crate) fn charge_call(&mut self, before: &Step, next: Step) -> Result<Step, Failure> {
        if before.call_price.is_zero() || next.status == StepStatus::Running {
            return Ok(next);
        }
        let spent = Spent {
            subject: before.parent.unwrap_or(before.id).0,
            agent: Rows::agent(self, before.agent)?.name,
            provider: format!("tools.{}", before.tool),
            ..self.spent()
        };
        let memo = format!("{} call, prices {}", before.tool, crate::price::version(self.context));
        let charged = self.charge_try(before, before.call_price, &memo, spent)?;
        let used = next.usage.clone().unwrap_or_default();
        let usage = Some(StepUsage { charged: used.charged + charged, ..used });
        Ok(Step { usage, call_price: Credits::ZERO, ..next })
    }
}

pub(crate) fn cannot_be_paid(tool: ToolKind, price: Credits) -> LastError {
    let message = format!("a call of {tool} costs {price} credits, and so much cannot be set aside");
    LastError { code: "budget".into(), message, cause: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_names_a_kind_of_tool_and_is_not_negative() {
        let read = |text: &str| serde_json::from_str::<ToolPrices>(text);
        let prices = read(r#"{"http": "0.001", "mcp": "2"}"#).unwrap();
        assert_eq!(prices.of(ToolKind::Http), Credits(1_000));
        assert_eq!((prices.of(ToolKind::Mcp), prices.of(ToolKind::Exec)), (Credits::whole(2), Credits::ZERO));
        assert_eq!(serde_json::to_string(&prices).unwrap(), r#"{"http":"0.001","mcp":"2"}"#);
        for (bad, why) in [
            (r#"{"llm": "1"}"#, "tools.prices.llm: no kind of tool"),
            (r#"{"http": "-1"}"#, "tools.prices.http"),
            (r#"{"http": "much"}"#, "tools.prices.http"),
        ] {
            assert!(read(bad).unwrap_err().to_string().contains(why), "{bad}");
        }
    }
}
