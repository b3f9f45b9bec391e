//! The public API under `/api/v1`: what people and programs send and get. Times are Unix milliseconds, amounts decimal strings beside `*_micro`.
//!
//! | call | body → answer |
//! |---|---|
//! | `POST /runs` | [`Submit`] → 201 [`RunView`]; with `dry_run` 200 [`Plan`] |
//! | `GET /runs?status=&all=&name=&limit=&cursor=` | [`Page`] of [`RunView`]; open runs unless `all=true` |
//! | `GET /runs/{id}` · `/tree` · `/why` | [`RunView`] · [`Tree`] · [`Why`] |
//! | `GET /runs/{id}/attempts` `/agents` `/tasks` `/steps` `/jobs` `/artifacts` `/ledger` | [`Page`] of the noun's view |
//! | `GET /runs/{id}/steps/{step}` | [`StepDetailView`] |
//! | `GET /escalations` `/approvals`, each `/{id}` | [`Page`] of [`QuestionView`]; [`QuestionDetailView`] |
//! | `POST /escalations/{id}/resolve`, `POST /approvals/{id}/approve` `/reject` | [`ResolveBody`], [`ApproveBody`], [`RejectBody`] → [`QuestionDetailView`] |
//! | `GET /runs/{id}/events` | SSE when asked for by `Accept: text/event-stream` (`id:` the number, `event:` the kind, data [`EventView`]), else a [`Page`] |
//! | `GET /runs/{id}/logs?stream=&job=&step=&tail=&since_ms=&follow=` | SSE: `id:` `<job>:<offset after>`, of a run of agents the frame's number in the run, event `log`, data [`LogFrame`]; event `attempt`, data [`LogAttempt`], before each further attempt; ends with event `end`, data [`LogEnd`] |
//! | `POST /runs/{id}/start` `/cancel` `/stop` `/retry` `/pause` `/resume` | [`ActionBody`] (may be empty) → [`RunView`] |
//! | `DELETE /runs/{id}` | 204 |
//! | `POST /runs/{id}/steps` · `/steps/{step}/complete` `/fail` `/heartbeat` | [`BeginStep`] → [`StepAnswer`] · [`CompleteStep`], [`FailStep`] → [`StepAnswer`], [`BeatStep`] → [`StepBeat`] |
//! | `GET /runs/{id}/steps/recorded?name=&key=` | [`StepAnswer`] |
//! | `POST /steps/poll` | [`PollSteps`] → [`PolledStep`], or 204 when no step was offered in time |
//! | `POST /runs/{id}/finish` | [`FinishBody`] → [`RunView`] |
//! | `POST /runs/{id}/messages` | [`SendMessage`] → 201 [`MessageView`] |
//! | `POST /blobs/missing` · `PUT /blobs/{hash}` · `GET /blobs/{hash}` | [`BlobList`] → [`BlobList`] · bytes → 204 · bytes |
//! | `PUT /trees/{hash}` · `PUT /packs` | a folder's document (`model::tree`) → 204 · many small blobs and trees ([`crate::pack`]) → 204 |
//! | `GET /runs/{id}/artifacts/{artifact}` | bytes |
//! | `GET /instances` `/instances/{id}`, `POST /instances/{id}/terminate` | [`InstanceView`]; [`TerminateBody`] |
//! | `GET /allocations` `/allocations/{id}`, `POST /allocations/{id}/extend` `/release` | [`AllocationView`]; [`ExtendBody`] |
//! | `GET /workflows` `/workflows/{id}`, `POST /workflows/{id}/cancel` `/retry` | [`WorkflowView`]; [`CancelBody`] |
//! | `GET /manifests` `/manifests/{id}` | [`ManifestView`] |
//! | `GET /snapshots` `/snapshots/{id}`, `DELETE /snapshots/{id}`, `POST /allocations/{id}/snapshot` | [`SnapshotView`] |
//! | `POST /calls?wait=` · `GET /calls` `/calls/{id}?wait=` · `POST /calls/{id}/cancel` | [`AskCall`] → 202 [`CallView`], or 200 if it is over · [`CallView`] |
//! | `GET /dag/refs?kind=`, `PUT /dag/refs`, `DELETE /dag/refs?name=`, `GET /dag/log?of=`, `/dag/object?of=`, `/dag/indexes` | [`Page`] of [`RefView`], [`SetRef`] → [`RefView`], 204, [`CommitView`], [`ObjectView`], [`IndexView`] |
//! | `GET /dag/records?of=&have=` · `PUT /dag/records` | [`crate::records`] · the same → 204 |
//! | `GET /orphans?provider=&include_whitelisted=`, `/orphans/{id}`, `/orphans/tally`, `/orphans/scans`, `/orphans/whitelist` | [`OrphanView`], [`OrphanDetailView`], [`OrphanTally`], [`ScanView`], [`WhitelistView`] |
//! | `POST /orphans/scan`, `/orphans/whitelist`, `/orphans/{id}/terminate`, `DELETE /orphans/whitelist/{id}` | [`ScanBody`] → [`ScanReport`], [`WhitelistBody`] → [`WhitelistView`], [`EndOrphanBody`] → [`OrphanView`], 204 |
//! | `GET /credits` · `POST /credits` · `GET /credits/ledger` · `GET /credits/usage` | [`BalanceView`] · [`AddCredits`] · [`Page`] of [`LedgerRow`] · [`UsageView`] |
//! | `GET /runs/{id}/usage` | [`RunUsageView`] |
//! | `GET /secrets`, `PUT /secrets/{name}`, `DELETE /secrets/{name}` | [`SecretView`]; [`SecretBody`] |
//! | `GET /tokens`, `POST /tokens`, `DELETE /tokens/{id}` | [`TokenView`]; [`NewToken`] → 201 [`TokenView`] with `token` |
//! | `GET /pools`, `GET /audit` | [`PoolView`], [`AuditReport`] |
//! | `GET /providers` `/providers/{id}` `/providers/prices`, `POST /providers` `/providers/{id}/test`, `DELETE /providers/{id}?force=&abandon=` | [`ProviderView`], [`PriceView`]; [`NewProvider`] → 201 [`ProviderView`], [`ProviderReport`], 204 |

mod cache;
mod call;
mod control;
mod dag;
mod instance;
mod ledger;
mod log;
mod message;
mod orphan;
mod provider;
mod question;
mod run;
mod snapshot;
mod step;
mod token;
mod tree;
mod usage;
mod workflow;

pub use cache::*;
pub use call::*;
pub use control::*;
pub use dag::*;
pub use instance::*;
pub use ledger::*;
pub use log::*;
pub use message::*;
pub use orphan::*;
pub use provider::*;
pub use question::*;
pub use run::*;
pub use snapshot::*;
pub use step::*;
pub use token::*;
pub use tree::*;
pub use usage::*;
pub use workflow::*;

use serde::{Deserialize, Serialize};

/// One page of a listing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Page<T> {
    pub data: Vec<T>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}
