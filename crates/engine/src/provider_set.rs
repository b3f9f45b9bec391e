//! The providers that are set up now. The set is replaced as a whole when their rows change; who has read it goes on with what was read.

use adapters::Provider;
use adapters::registry::{self, BadSetting, Host, ProviderTable, Providers};
use model::Refused;
use model::host::Host as HostRow;
use model::provider_row::ProviderRow;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// A provider and what was said of it beside its own settings.
#[derive(Clone)]
pub struct Listing {
    pub provider: Arc<dyn Provider>,
    /// Only these orgs may use it, by name.
    pub orgs: Option<Vec<String>>,
    /// No new machine is made there; those that exist are ended.
    pub leaving: bool,
    /// It stands in the settings, which win over rows.
    pub of_settings: bool,
    /// The kind and the keys of its row: while they stay, it stays, with whatever it has open.
    pub made_of: Option<(String, Map<String, Value>)>,
    /// What is known of its hosts, where it has several.
    pub hosts: Vec<HostRow>,
}

impl Listing {
    pub fn of(provider: Arc<dyn Provider>) -> Listing {
        Listing { provider, orgs: None, leaving: false, of_settings: true, made_of: None, hosts: Vec::new() }
    }
}

pub type Listings = BTreeMap<String, Listing>;

/// What the settings say of providers, and how one is made from its keys.
#[derive(Debug, Clone)]
pub struct ProviderSettings {
    pub tables: Providers,
    /// Credits per instance-hour as decimal text, by the name of the provider.
    pub prices: BTreeMap<String, String>,
    pub host: Host,
}

#[derive(Default)]
pub struct ProviderSet {
    now: RwLock<Arc<Listings>>,
    /// Those of the settings, which never change.
    own: Listings,
    settings: Option<ProviderSettings>,
    /// What lists things that features have made elsewhere, by `features.NAME`: no providers, and asked only by scans.
    listers: BTreeMap<String, Arc<dyn Provider>>,
}

impl ProviderSet {
    pub fn with_listers(self, listers: BTreeMap<String, Arc<dyn Provider>>) -> ProviderSet {
        ProviderSet { listers, ..self }
    }

    pub(crate) fn listers(&self) -> &BTreeMap<String, Arc<dyn Provider>> {
        &self.listers
    }

    pub fn new(settings: ProviderSettings) -> Result<ProviderSet, BadSetting> {
        let made = settings.tables.make(&settings.prices, &settings.host)?;
        let listing = |(name, provider): (String, Arc<dyn Provider>)| {
            let orgs = settings.tables.tables().get(&name).and_then(|table| table.orgs.clone());
            (name, Listing { orgs, ..Listing::of(provider) })
        };
        let own: Listings = made.into_iter().map(listing).collect();
        Ok(ProviderSet {
            now: RwLock::new(Arc::new(own.clone())),
            own,
            settings: Some(settings),
            listers: BTreeMap::new(),
        })
    }

    pub fn get(&self, name: &str) -> Option<Arc<dyn Provider>> {
        self.all().get(name).map(|listing| listing.provider.clone())
    }

    /// Whether no new machine is made there.
    pub fn is_leaving(&self, name: &str) -> bool {
        self.all().get(name).is_some_and(|listing| listing.leaving)
    }

    pub fn all(&self) -> Arc<Listings> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn replace(&self, listings: Listings) {
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(listings);
    }

    pub fn insert(&self, name: String, listing: Listing) {
        let mut listings = Listings::clone(&self.all());
        listings.insert(name, listing);
        self.replace(listings);
    }

    pub(crate) fn own(&self) -> Listings {
        self.own.clone()
    }

    /// The tables of the settings, by name.
    pub(crate) fn of_settings(&self) -> BTreeMap<String, ProviderTable> {
        self.settings.as_ref().map(|settings| settings.tables.tables().clone()).unwrap_or_default()
    }

    /// What a row says, made into a provider. Starts no process and sends no request.
    pub(crate) fn make(&self, row: &ProviderRow) -> Result<Listing, Refused> {
        let Some(settings) = &self.settings else {
            return Err(Refused::Conflict { why: "this process has no settings of providers".to_owned() });
        };
        let made_of = Some((row.kind.clone(), row.keys.clone()));
        let provider = match self.all().get(&row.name).filter(|known| known.made_of == made_of) {
            Some(known) => known.provider.clone(),
            None => {
                let (kind, orgs, keys) = (Some(row.kind.clone()), row.orgs.clone(), row.keys.clone());
                let price = settings.prices.get(&row.name).or(row.price_per_hour.as_ref()).map(String::as_str);
                let made = registry::make_one(&row.name, &ProviderTable { kind, orgs, keys }, price, &settings.host);
                made.map_err(|bad| refused(&bad))?
            }
        };
        let (orgs, leaving, of_settings) = (row.orgs.clone(), row.leaving, row.of_settings);
        Ok(Listing { provider, orgs, leaving, of_settings, made_of, hosts: Vec::new() })
    }
}

fn refused(bad: &BadSetting) -> Refused {
    match bad {
        BadSetting::Unknown { setting, what, word, known } => {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let fix = plan::nearest::suggestion(word, &known);
            Refused::invalid(setting, format!("unknown {what} `{word}`: {fix}"))
        }
        BadSetting::Wrong { setting, why } => Refused::invalid(setting, why),
    }
}

impl From<BTreeMap<String, Arc<dyn Provider>>> for ProviderSet {
    fn from(providers: BTreeMap<String, Arc<dyn Provider>>) -> ProviderSet {
        let own: Listings = providers.into_iter().map(|(name, provider)| (name, Listing::of(provider))).collect();
        ProviderSet { now: RwLock::new(Arc::new(own.clone())), own, settings: None, listers: BTreeMap::new() }
    }
}
