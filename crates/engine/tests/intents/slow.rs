//! The fake provider, whose spawns may take as long as a test wants: what else happens meanwhile is the test's to decide.

use adapters::provider::ProviderFuture;
use adapters::{Capabilities, FakeProvider, Handle, ListAsk, ListedPage, Order, Provider, Reach, Seen};
use model::Credits;
use model::spec::Resources;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

pub struct SlowProvider {
    pub near: Arc<FakeProvider>,
    pub hangs: Arc<AtomicBool>,
}

impl Provider for SlowProvider {
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
    fn rooms(&self) -> Vec<adapters::Room> {
        self.near.rooms()
    }
    fn look<'a>(&'a self, ask: &'a adapters::LookAsk) -> ProviderFuture<'a, adapters::Looks> {
        self.near.look(ask)
    }
    fn spawn<'a>(&'a self, order: &'a Order) -> ProviderFuture<'a, Handle> {
        Box::pin(async {
            std::future::poll_fn(|_| if self.hangs.load(Ordering::Relaxed) { Poll::Pending } else { Poll::Ready(()) })
                .await;
            self.near.spawn(order).await
        })
    }
    fn find_by_name<'a>(&'a self, name: &'a str) -> ProviderFuture<'a, Option<Handle>> {
        self.near.find_by_name(name)
    }
    fn inspect<'a>(&'a self, handle: &'a Handle, nonce: &'a str) -> ProviderFuture<'a, Seen> {
        self.near.inspect(handle, nonce)
    }
    fn terminate<'a>(&'a self, handle: &'a Handle, nonce: &'a str) -> ProviderFuture<'a, ()> {
        self.near.terminate(handle, nonce)
    }
    fn list<'a>(&'a self, ask: &'a ListAsk) -> ProviderFuture<'a, ListedPage> {
        self.near.list(ask)
    }
    fn delete<'a>(&'a self, kind: model::orphan::ResourceType, handle: &'a Handle) -> ProviderFuture<'a, ()> {
        self.near.delete(kind, handle)
    }
    fn remove_workdir<'a>(&'a self, handle: &'a Handle, workdir: &'a str) -> ProviderFuture<'a, ()> {
        self.near.remove_workdir(handle, workdir)
    }
    fn forget<'a>(&'a self, handle: &'a Handle) -> ProviderFuture<'a, ()> {
        self.near.forget(handle)
    }
    fn workdir_path(&self, handle: &Handle, workdir: &str) -> Option<String> {
        self.near.workdir_path(handle, workdir)
    }
}
