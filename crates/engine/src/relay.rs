//! Links of machines whose runners cannot dial the control plane. The holder of a machine's item `link` carries its runner's connections
//! for as long as it holds the item; its end is a lost stream for the runner, which connects again through the next holder's.

use crate::Engine;
use crate::closing::Closing;
use crate::instance::handle_of;
use adapters::ssh::{Dial, DialFuture};
use adapters::{Handle, Linked};
use model::instance::Instance;
use model::{Failure, InstanceId, OrphanId, Trouble};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use store::{Item, Tx};

/// A link that was there is opened again at once, one that could not be opened a little later.
const AGAIN_MS: i64 = 500;
const UNOPENED_MS: i64 = 5 * model::time::SECOND;

/// What the links of this process have in common.
#[derive(Default)]
pub(crate) struct Links {
    dial: OnceLock<Dialler>,
    pub(crate) closing: Closing,
}

/// Opens a connection to the control plane for the runner of a machine.
pub type Dialler = Arc<dyn Fn(InstanceId) -> DialFuture + Send + Sync>;

/// A machine whose runner may need a link.
struct Machine {
    id: InstanceId,
    name: String,
    source: Source,
}

enum Source {
    Row(Box<Instance>),
    Listed { provider: String, handle: Handle },
}

/// How the hold of a link ended.
enum Held {
    Link(Result<Linked, Trouble>),
    /// This process ends.
    Cut,
}

impl Engine {
    /// What links of this process connect runners to. Set once, when the process can answer them.
    pub fn answer_links(&self, dial: Dialler) {
        let _ = self.links.dial.set(dial);
    }

    /// Holds the link of one machine until it ends, or this process does.
    pub(crate) async fn hold_link(&self, item: Item) -> Result<(), Failure> {
        let (machine, dial) = (self.linked(item.subject).await?, self.links.dial.get().cloned());
        let (Some(machine), Some(dial)) = (machine, dial) else { return self.done(item).await };
        let id = machine.id;
        match self.link(&machine, Arc::new(move || dial(id))).await {
            Held::Link(Ok(Linked::Unneeded)) => self.done(item).await,
            Held::Link(Ok(Linked::Ended)) => self.finish(item, |now| Some(now + AGAIN_MS)).await,
            Held::Link(Err(trouble)) => {
                tracing::warn!(instance = %machine.name, %trouble, "its runner has no way to the control plane");
                self.finish(item, |now| Some(now + UNOPENED_MS)).await
            }
            Held::Cut => self.again(item).await,
        }
    }

    /// The machine of this item: of a row, or one that its provider lists and no row knows. Ids are of one sequence, so that no two things
    /// share one.
    async fn linked(&self, subject: i64) -> Result<Option<Machine>, Failure> {
        let read = move |tx: &mut Tx| {
            if let Some(row) = store::instance::find(tx, InstanceId(subject))? {
                return Ok(row.status.is_open().then(|| Machine {
                    id: row.id,
                    name: row.name.clone(),
                    source: Source::Row(Box::new(row)),
                }));
            }
            let Some(orphan) = store::orphan::find(tx, OrphanId(subject))? else { return Ok(None) };
            let Some(name) = orphan.listed.inferred() else { return Ok(None) };
            let handle = Handle(orphan.listed.handle.clone());
            let source = Source::Listed { provider: orphan.provider, handle };
            Ok(Some(Machine { id: InstanceId(name.resource), name: orphan.listed.name, source }))
        };
        self.store.read_inline("instance.linked", read).await
    }

    async fn link(&self, machine: &Machine, dial: Dial) -> Held {
        let mut linked = pin!(async {
            let provider = match &machine.source {
                Source::Row(row) => &row.provider,
                Source::Listed { provider, .. } => provider,
            };
            let provider = match self.context.provider(provider) {
                Ok(provider) => provider,
                Err(refused) => return Err(Trouble::internal(refused.to_string())),
            };
            let handle = match &machine.source {
                Source::Row(row) => handle_of(provider.as_ref(), row).await?,
                Source::Listed { handle, .. } => Some(handle.clone()),
            };
            match handle {
                Some(handle) => provider.link(&handle, dial).await,
                None => Ok(Linked::Unneeded),
            }
        });
        let mut closing = pin!(self.links.closing.asked());
        poll_fn(|context| match linked.as_mut().poll(context) {
            Poll::Ready(ended) => Poll::Ready(Held::Link(ended)),
            Poll::Pending => closing.as_mut().poll(context).map(|()| Held::Cut),
        })
        .await
    }
}
