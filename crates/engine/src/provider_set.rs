//! The providers that are set up now. The set is replaced as a whole when its rows change; who has read it goes on with what was read.

use adapters::Provider;
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
}

impl Listing {
    pub fn of(provider: Arc<dyn Provider>) -> Listing {
        Listing { provider, orgs: None, leaving: false, of_settings: true }
    }
}

pub type Listings = BTreeMap<String, Listing>;

#[derive(Default)]
pub struct ProviderSet(RwLock<Arc<Listings>>);

impl ProviderSet {
    pub fn get(&self, name: &str) -> Option<Arc<dyn Provider>> {
        self.all().get(name).map(|listing| listing.provider.clone())
    }

    pub fn all(&self) -> Arc<Listings> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn replace(&self, listings: Listings) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(listings);
    }

    pub fn insert(&self, name: String, listing: Listing) {
        let mut listings = Listings::clone(&self.all());
        listings.insert(name, listing);
        self.replace(listings);
    }
}

impl From<BTreeMap<String, Arc<dyn Provider>>> for ProviderSet {
    fn from(providers: BTreeMap<String, Arc<dyn Provider>>) -> ProviderSet {
        let set = ProviderSet::default();
        set.replace(providers.into_iter().map(|(name, provider)| (name, Listing::of(provider))).collect());
        set
    }
}
