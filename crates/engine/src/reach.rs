//! Which address of the control plane a runner dials. The provider of its machine decides; a provider whose runners could dial
//! nothing is refused at start.

use crate::EngineContext;
use adapters::Reach;
use model::Refused;

/// The addresses under which runners reach the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlUrls {
    /// From the control plane's own host: its unix socket, or the address that it listens on.
    pub host: String,
    /// From other machines: the setting `public_url`.
    pub public: Option<String>,
}

impl ControlUrls {
    /// For a control plane whose runners are all on its own host.
    pub fn only(host: impl Into<String>) -> ControlUrls {
        ControlUrls { host: host.into(), public: None }
    }
}

impl EngineContext {
    /// What the runners of this provider dial. Of a provider that is no longer set up no machine is started, so any address does.
    pub(crate) fn control_url(&self, provider: &str) -> &str {
        self.url_for(self.providers.get(provider).map_or(Reach::Host, |provider| provider.reach()))
    }

    pub(crate) fn url_for(&self, reach: Reach) -> &str {
        let urls = &self.control_urls;
        match reach {
            Reach::Public => urls.public.as_deref().expect("checked at start"),
            Reach::Relay => urls.public.as_deref().unwrap_or(adapters::provider::RELAY_URL),
            Reach::Host => &urls.host,
        }
    }

    /// Whether this provider carries its runners' connections where they cannot dial.
    pub(crate) fn is_linked(&self, provider: &str) -> bool {
        self.providers.get(provider).is_some_and(|provider| provider.reach() == Reach::Relay)
    }

    pub(crate) fn check_reach(&self) -> Result<(), Refused> {
        let all = self.providers.all();
        let unreached = all.iter().find(|(_, listing)| listing.provider.reach() == Reach::Public);
        match unreached.filter(|_| self.control_urls.public.is_none()) {
            Some((name, _)) => Err(Refused::invalid(
                "public_url",
                format!(
                    "machines of [providers.{name}] must be able to dial the control plane: set public_url in \
                     config.toml or REPL_PUBLIC_URL"
                ),
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adapters::fake::{FakeProvider, FakeSettings, Fate};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn context(public: Option<&str>) -> EngineContext {
        let provider = |reach| {
            let settings = FakeSettings { reach, ..FakeSettings::default() };
            Arc::new(FakeProvider::new(settings, Box::new(|_, _| Fate::Obey))) as Arc<dyn adapters::Provider>
        };
        EngineContext {
            config: crate::Config::default(),
            installation: store::Installation::new("t3stt3st", [7; 32]),
            providers: BTreeMap::from([
                ("near".to_owned(), provider(Reach::Host)),
                ("far".to_owned(), provider(Reach::Public)),
                ("hosts".to_owned(), provider(Reach::Relay)),
            ])
            .into(),
            tools: Default::default(),
            models: Default::default(),
            control_urls: ControlUrls { host: "unix:/s".into(), public: public.map(str::to_owned) },
            control_ca: None,
            presence: crate::Presence::alone(),
            blob_source: model::spec::BlobSource::ControlPlane,
            timer: Arc::new(crate::workflow::tests::Never),
        }
    }

    #[test]
    fn each_provider_decides_what_its_runners_dial() {
        let context = context(Some("https://remuda.example"));
        context.check_reach().unwrap();
        assert_eq!(context.control_url("near"), "unix:/s");
        assert_eq!(context.control_url("far"), "https://remuda.example");
        assert_eq!(context.control_url("hosts"), "https://remuda.example");
        assert!(context.is_linked("hosts") && !context.is_linked("far"));
    }

    #[test]
    fn a_provider_whose_runners_can_dial_nothing_is_refused_by_name() {
        let refused = context(None).check_reach().unwrap_err().to_string();
        assert!(refused.starts_with("public_url: ") && refused.contains("[providers.far]"), "{refused}");
        let context = context(None);
        let mut near = crate::Listings::clone(&context.providers.all());
        near.remove("far");
        context.providers.replace(near);
        context.check_reach().unwrap();
        assert_eq!(context.control_url("hosts"), "relay:", "its provider puts an address in the place of this");
    }
}
