//! Lists that begin with the newest, by time: ids come from the block of the process that made the row.

use crate::support::World;
use crate::{read, write};
use model::allocation::Allocation;
use model::instance::Instance;
use model::manifest::Manifest;
use model::snapshot::{Snapshot, SnapshotStatus};
use model::workflow::{Intent, Workflow};
use model::{AllocationId, Failure, InstanceId, ManifestId, OrgId, PoolId, Refused, SnapshotId, Timestamp, WorkflowId};
use store::Tx;

const ORG: OrgId = OrgId(7);
/// Ids and times of rows: the order of the ids is not that of the times, and two are of one moment.
const ROWS: [(i64, i64); 4] = [(40, 1_000), (10, 2_000), (30, 3_000), (31, 3_000)];
const NEWEST_FIRST: [i64; 4] = [31, 30, 10, 40];

fn add(tx: &mut Tx, id: i64, at: Timestamp) -> Result<(), Failure> {
    let workflow =
        Workflow { created_at: at, ..Workflow::new(WorkflowId(id), ManifestId(id), ORG, Intent::CreateSnapshot, &[]) };
    store::workflow::insert(tx, &workflow)?;
    store::manifest::insert(tx, &Manifest::draft(&workflow))?;
    let name = format!("machine-{id}");
    store::instance::insert(tx, &Instance::announced(InstanceId(id), ORG, PoolId(1), ManifestId(id), name, at))?;
    store::allocation::insert(tx, &Allocation::free(AllocationId(id), ORG, InstanceId(id), "me".into(), at))?;
    let snapshot = Snapshot {
        id: SnapshotId(id),
        org: ORG,
        status: SnapshotStatus::Making,
        run: None,
        allocation: AllocationId(id),
        instance: InstanceId(id),
        workdir: "work_1".into(),
        workflow: WorkflowId(id),
        manifest: ManifestId(id),
        tree: None,
        asked: false,
        error: None,
        created_at: at,
        ready_at: None,
        deleted_at: None,
    };
    store::snapshot::insert(tx, &snapshot)
}

type Page = fn(&mut Tx, i64, i64) -> Result<Vec<i64>, Failure>;

const PAGES: [(&str, Page); 5] = [
    ("workflows", |tx, before, limit| {
        Ok(store::workflow::page(tx, ORG, before, limit)?.into_iter().map(|it| it.id.0).collect())
    }),
    ("manifests", |tx, before, limit| {
        Ok(store::manifest::page(tx, ORG, before, limit)?.into_iter().map(|it| it.id.0).collect())
    }),
    ("instances", |tx, before, limit| {
        Ok(store::instance::page(tx, ORG, before, limit)?.into_iter().map(|it| it.id.0).collect())
    }),
    ("allocations", |tx, before, limit| {
        Ok(store::allocation::page(tx, ORG, before, limit)?.into_iter().map(|it| it.id.0).collect())
    }),
    ("snapshots", |tx, before, limit| {
        Ok(store::snapshot::page(tx, ORG, before, limit)?.into_iter().map(|it| it.id.0).collect())
    }),
];

pub async fn lists_begin_with_what_was_made_last_whatever_its_id(w: &World) {
    write(&w.store, |tx| ROWS.iter().try_for_each(|(id, at)| add(tx, *id, Timestamp(*at)))).await.unwrap();
    for (what, page) in PAGES {
        assert_eq!(read(&w.store, move |tx| page(tx, i64::MAX, 10)).await, NEWEST_FIRST, "{what}");
        let (mut found, mut before) = (Vec::new(), i64::MAX);
        while let Some(last) = read(&w.store, move |tx| page(tx, before, 1)).await.pop() {
            found.push(last);
            before = last;
        }
        assert_eq!(found, NEWEST_FIRST, "{what}, page by page");
        let unknown = w.store.read("test", move |tx| page(tx, 99, 10)).await.unwrap_err();
        assert!(matches!(unknown.refused(), Some(Refused::Invalid { .. })), "{what}: {unknown}");
    }
}
