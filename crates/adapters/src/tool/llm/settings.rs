//! The models that steps can name: where each is served, with which key, how much it reads and what it costs.

use model::Credits;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// `[llm.NAME]` of the settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlmSettings {
    /// Up to the part before `/chat/completions`, as in `https://api.openai.com/v1`.
    pub base_url: String,
    /// Name of the secret that holds the key. Servers on the own machine often need none.
    #[serde(default)]
    pub api_key: Option<String>,
    /// As the server names them.
    pub models: BTreeMap<String, LlmModel>,
    /// The model of steps that name only these settings; needed if there are several.
    #[serde(default)]
    pub default_model: Option<String>,
    /// The time limit for the first piece of an answer. Models that reason are silent before they answer.
    #[serde(default = "five_minutes")]
    pub first_token_within_ms: u64,
    /// The longest silence between two pieces. Comments that keep the connection alive count as pieces.
    #[serde(default = "one_minute")]
    pub silent_for_ms: u64,
    /// Of a server that the environment names: any other model is taken too, with these limits.
    #[serde(skip)]
    pub any_model: Option<LlmModel>,
    /// The key itself, where it is no secret of the control plane's but a variable of its environment.
    #[serde(skip)]
    pub key_here: Option<String>,
}

impl LlmSettings {
    pub fn at(base_url: String, models: BTreeMap<String, LlmModel>) -> LlmSettings {
        LlmSettings {
            base_url,
            api_key: None,
            models,
            default_model: None,
            first_token_within_ms: five_minutes(),
            silent_for_ms: one_minute(),
            any_model: None,
            key_here: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlmModel {
    /// Tokens that prompt and answer have together.
    pub context: i64,
    /// Credits for a million tokens, as `"2.5"` or `2.5`. A model without prices takes the default price.
    #[serde(default, deserialize_with = "credits", serialize_with = "decimal")]
    pub input_price: Option<Credits>,
    #[serde(default, deserialize_with = "credits", serialize_with = "decimal")]
    pub output_price: Option<Credits>,
}

/// As it is written in the settings.
fn decimal<S: Serializer>(price: &Option<Credits>, serializer: S) -> Result<S::Ok, S::Error> {
    price.map(|price| price.to_string()).serialize(serializer)
}

fn credits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Credits>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Said {
        Text(String),
        Whole(i64),
        Fraction(f64),
    }
    let said = match Option::<Said>::deserialize(deserializer)? {
        None => return Ok(None),
        Some(Said::Text(text)) => text,
        Some(Said::Whole(number)) => number.to_string(),
        Some(Said::Fraction(number)) => number.to_string(),
    };
    let price: Credits = said.parse().map_err(serde::de::Error::custom)?;
    if price.micro() < 0 { Err(serde::de::Error::custom("a price is not negative")) } else { Ok(Some(price)) }
}

fn five_minutes() -> u64 {
    300_000
}
fn one_minute() -> u64 {
    60_000
}

/// All models, by the name of their settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Models(pub BTreeMap<String, LlmSettings>);

/// A model that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'a> {
    /// Of the settings.
    pub name: &'a str,
    pub settings: &'a LlmSettings,
    /// As the server names it.
    pub model: &'a str,
    pub limits: &'a LlmModel,
}

/// `max_output_tokens` of a step that does not say it.
const DEFAULT_OUTPUT_TOKENS: i64 = 4_096;

impl LlmModel {
    pub fn default_output_tokens(&self) -> i64 {
        DEFAULT_OUTPUT_TOKENS.min(self.context / 4).max(1)
    }
}

impl Models {
    /// The version of the price table: a hash of the prices of all models as they are charged, and of those of everything else (`others`,
    /// line by line). `default` is that of a model without one.
    pub fn price_version(&self, default: Credits, others: &str) -> String {
        let mut table = format!("default {default}\n{others}");
        for (name, settings) in &self.0 {
            let named = settings.models.iter().map(|(model, limits)| (model.as_str(), limits));
            for (model, limits) in named.chain(settings.any_model.iter().map(|limits| ("*", limits))) {
                let price = |price: Option<Credits>| price.unwrap_or(default);
                let (input, output) = (price(limits.input_price), price(limits.output_price));
                table.push_str(&format!("{name}/{model} {input} {output}\n"));
            }
        }
        blake3::hash(table.as_bytes()).to_hex()[..8].to_owned()
    }

    /// What steps may write to name a model: `NAME`, where that is enough, and `NAME/MODEL`.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (name, settings) in &self.0 {
            names.extend(self.find(name).is_ok().then(|| name.clone()));
            names.extend(settings.models.keys().map(|model| format!("{name}/{model}")));
        }
        names
    }

    /// By `NAME`, `NAME/MODEL`, or a `MODEL` that only one of the settings has.
    pub fn find<'a>(&'a self, asked: &'a str) -> Result<Found<'a>, String> {
        if let Some((name, settings)) = self.0.get_key_value(asked) {
            let only = (settings.models.len() == 1).then(|| settings.models.keys().next()).flatten();
            let chosen = settings.default_model.as_ref().or(only);
            let chosen = chosen.ok_or_else(|| match settings.any_model {
                Some(_) => "no model is named: name one in the step, or set OPENAI_MODEL".to_owned(),
                None => format!("llm.{name} has several models and no default_model"),
            })?;
            return found(name, settings, chosen).ok_or_else(|| format!("llm.{name} has no model `{chosen}`"));
        }
        let named = asked.split_once('/').and_then(|(name, model)| {
            let (name, settings) = self.0.get_key_value(name)?;
            found(name, settings, model)
        });
        if let Some(named) = named {
            return Ok(named);
        }
        let mut anywhere = self.0.iter().filter_map(|(name, settings)| found(name, settings, asked));
        match (anywhere.next(), anywhere.next()) {
            (Some(only), None) => Ok(only),
            (Some(one), Some(other)) => Err(format!(
                "model `{asked}` is in llm.{} and llm.{}: write {}/{asked}",
                one.name, other.name, one.name
            )),
            (None, _) if self.0.values().any(|settings| settings.any_model.is_some()) => {
                let mut open =
                    self.0.iter().filter_map(|(name, settings)| Some((name, settings, settings.any_model.as_ref()?)));
                let (name, settings, limits) = open.next().expect("there is one");
                Ok(Found { name, settings, model: asked, limits })
            }
            (None, _) if self.0.is_empty() => Err(format!(
                "there is no model `{asked}`: the settings have none; add a table [llm.NAME] to them, or set OPENAI_BASE_URL"
            )),
            (None, _) => {
                let known: Vec<&str> = self.0.keys().map(String::as_str).collect();
                Err(format!("there is no model `{asked}`; the settings know: {}", known.join(", ")))
            }
        }
    }
}

fn found<'a>(name: &'a str, settings: &'a LlmSettings, model: &str) -> Option<Found<'a>> {
    let (model, limits) = settings.models.get_key_value(model)?;
    Some(Found { name, settings, model, limits })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_price_is_written_as_a_decimal_number_and_is_not_negative() {
        let read = |price: serde_json::Value| {
            serde_json::from_value::<LlmModel>(json!({ "context": 1, "input_price": price }))
        };
        for price in [json!("2.5"), json!(2.5)] {
            let model = read(price).unwrap();
            assert_eq!(model.input_price, Some(Credits(2_500_000)));
            assert_eq!(serde_json::to_value(&model).unwrap()["input_price"], "2.5");
        }
        for bad in [json!(-1), json!("x"), json!(true)] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_model_is_found_by_its_settings_by_both_names_or_alone() {
        let models = json!({
            "default": {"base_url": "http://a/v1", "models": {"small": {"context": 8000}}},
            "big": {"base_url": "http://b/v1", "models": {"org/large": {"context": 1}, "small": {"context": 1}}},
            "two": {"base_url": "http://c/v1", "default_model": "y", "models": {"x": {"context": 1}, "y": {"context": 1}}},
        });
        let models = Models(serde_json::from_value(models).unwrap());
        for (asked, expected) in [
            ("default", Some(("default", "small"))),
            ("default/small", Some(("default", "small"))),
            ("big/org/large", Some(("big", "org/large"))),
            ("org/large", Some(("big", "org/large"))),
            ("two", Some(("two", "y"))),
            ("two/x", Some(("two", "x"))),
            ("big", None),
            ("small", None),
            ("other", None),
            ("default/other", None),
        ] {
            assert_eq!(models.find(asked).ok().map(|found| (found.name, found.model)), expected, "{asked}");
        }
    }
}
