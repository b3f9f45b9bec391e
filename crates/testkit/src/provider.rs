//! The fake provider as one simulated process meets it: calls take their time, fail, and end with the process that made them.
//! Never changes what a call does.

use crate::chance::Chance;
use crate::faults::{Faults, Kind};
use crate::time::Now;
use adapters::fake::{Decide, Fate};
use adapters::{Capabilities, FakeProvider, Handle, ListAsk, ListedPage, Order, Provider, ProviderFuture, Reach, Seen};
use model::spec::Resources;
use model::{Credits, Trouble, TroubleKind};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Clone)]
pub struct FarProvider {
    pub near: Arc<FakeProvider>,
    pub now: Now,
    pub faults: Faults,
    /// The longest a call takes, there and back.
    pub takes_ms: Arc<AtomicI64>,
    pub chance: Arc<Mutex<Chance>>,
    /// The calling process is dead: nothing it still asks for is heard.
    pub caller_dead: Arc<AtomicBool>,
}

/// How a provider says no. Not "not found": that is an answer, and must be true.
const TROUBLES: [TroubleKind; 9] = {
    use TroubleKind::*;
    [Capacity, Auth, RateLimit, Quota, InvalidSpec, Region, Network, Timeout, Internal]
};

/// The fate of calls in a world with these faults.
pub fn fates(faults: &Faults) -> Decide {
    let faults = faults.clone();
    Box::new(move |_, _| {
        if faults.strikes(Kind::Throttled).is_some() {
            Fate::FailBefore(TroubleKind::RateLimit)
        } else if let Some(mut luck) = faults.strikes(Kind::CallFails) {
            Fate::FailBefore(luck.pick(&TROUBLES))
        } else if let Some(mut luck) = faults.strikes(Kind::CallTimesOut) {
            Fate::FailAfter(luck.pick(&[TroubleKind::Timeout, TroubleKind::Network, TroubleKind::Internal]))
        } else {
            Fate::Obey
        }
    })
}

impl FarProvider {
    /// Half of the delay, then the effect, then the other half. A caller that dies before has not called, and after does not get the answer.
    fn call<'a, T: Send + 'a>(
        &'a self,
        deed: impl FnOnce() -> ProviderFuture<'a, T> + Send + 'a,
    ) -> ProviderFuture<'a, T> {
        Box::pin(async move {
            self.dies_here(Kind::CallCrashBefore).await;
            self.now.wait(self.draw()).await;
            let result = deed().await;
            self.dies_here(Kind::CallCrashAfter).await;
            self.now.wait(self.draw()).await;
            result
        })
    }

    /// A dead process goes no further.
    async fn dies_here(&self, kind: Kind) {
        if self.caller_dead.load(Ordering::Relaxed) || self.faults.strikes(kind).is_some() {
            self.caller_dead.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
    }

    fn draw(&self) -> i64 {
        match self.takes_ms.load(Ordering::Relaxed) {
            0 => 0,
            most => self.chance.lock().expect("one thread").between(0, most),
        }
    }
}

impl Provider for FarProvider {
    fn name(&self) -> &str {
        self.near.name()
    }
    fn capabilities(&self) -> Capabilities {
        self.near.capabilities()
    }
    fn reach(&self) -> Reach {
        self.near.reach()
    }
    fn price(&self, asked: &Resources, region: &str, spot: bool) -> Credits {
        self.near.price(asked, region, spot)
    }
    fn size_for(&self, asked: &Resources) -> Resources {
        self.near.size_for(asked)
    }
    fn platform(&self) -> Option<adapters::Platform> {
        self.near.platform()
    }
    fn spawn<'a>(&'a self, order: &'a Order) -> ProviderFuture<'a, Handle> {
        self.call(move || match self.faults.strikes(Kind::RegionFull) {
            Some(_) => {
                let what = format!("{} has no machine", order.region);
                Box::pin(std::future::ready(Err(Trouble::new(TroubleKind::Capacity, what))))
            }
            None => self.near.spawn(order),
        })
    }
    fn find_by_name<'a>(&'a self, name: &'a str) -> ProviderFuture<'a, Option<Handle>> {
        self.call(move || self.near.find_by_name(name))
    }
    fn inspect<'a>(&'a self, handle: &'a Handle, nonce: &'a str) -> ProviderFuture<'a, Seen> {
        self.call(move || self.near.inspect(handle, nonce))
    }
    fn terminate<'a>(&'a self, handle: &'a Handle, nonce: &'a str) -> ProviderFuture<'a, ()> {
        self.call(move || self.near.terminate(handle, nonce))
    }
    fn list<'a>(&'a self, ask: &'a ListAsk) -> ProviderFuture<'a, ListedPage> {
        self.call(move || self.near.list(ask))
    }
    fn delete<'a>(&'a self, kind: model::orphan::ResourceType, handle: &'a Handle) -> ProviderFuture<'a, ()> {
        self.call(move || self.near.delete(kind, handle))
    }
    fn remove_workdir<'a>(&'a self, handle: &'a Handle, workdir: &'a str) -> ProviderFuture<'a, ()> {
        self.call(move || self.near.remove_workdir(handle, workdir))
    }
    fn forget<'a>(&'a self, handle: &'a Handle) -> ProviderFuture<'a, ()> {
        self.call(move || self.near.forget(handle))
    }
    fn workdir_path(&self, handle: &Handle, workdir: &str) -> Option<String> {
        self.near.workdir_path(handle, workdir)
    }
}
