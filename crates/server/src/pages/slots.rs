//! The page of machines, when there are more of them than one page names.

use super::tests::{enter, get, world};
use crate::hostile::World;
use engine::store::{Lane, Tx};
use model::allocation::{Allocation, AllocationStatus};
use model::instance::Instance;
use model::{AllocationId, Failure, InstanceId, Timestamp};

/// Ids of rows that tests make: far from those that the store gives out.
const FAR: i64 = 1 << 40;

async fn write(world: &World, act: impl Fn(&mut Tx) -> Result<(), Failure> + Send + Sync + 'static) {
    world.engine.store.write(Lane::Normal, "test.write", act).await.unwrap();
}

/// The machine that a run has been given.
async fn machine(world: &World) -> InstanceId {
    crate::repeated::placed(world).await["instance"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_held_folder_is_shown_however_many_slots_came_later() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let (org, machine) = (world.org, machine(&world).await);
    write(&world, move |tx| {
        let at = tx.at();
        for n in 0..60 {
            let made = Timestamp(at.ms() + n);
            let slot = Allocation::free(AllocationId(FAR + n), org, machine, "me".to_owned(), made);
            let held = (n == 0).then_some(Timestamp(at.ms() + 600_000));
            let over = Timestamp(at.ms() - 1);
            let slot = Allocation {
                status: AllocationStatus::Complete,
                completed_at: Some(at),
                // The hold of the second one is over, and the others have none.
                debug_hold_until: held.or((n == 1).then_some(over)),
                ..slot
            };
            engine::store::allocation::insert(tx, &slot)?;
        }
        Ok(())
    })
    .await;
    let page = get(&world, "/machines", &cookie).await.text;
    let shown = |n: i64| page.contains(&format!(r#"<tr id="{}""#, AllocationId(FAR + n)));
    assert!(shown(0) && !shown(1) && !shown(2) && !shown(59), "{page}");
    let listed = world.ask("get", "/api/v1/allocations?held=true", Some(&world.admin), &[], "").await.body;
    let ids: Vec<&str> = listed["data"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [AllocationId(FAR).to_string()]);
}

#[tokio::test]
async fn a_pool_counts_the_machines_that_the_page_does_not_name() {
    let world = world().await;
    let cookie = enter(&world, &world.admin).await;
    let machine = machine(&world).await;
    write(&world, move |tx| {
        let machine = engine::store::instance::lock(tx, machine)?;
        for n in 0..40 {
            let (id, name) = (InstanceId(FAR + n), format!("copy-{n}"));
            engine::store::instance::insert(tx, &Instance { id, name, ..machine.clone() })?;
        }
        Ok(())
    })
    .await;
    let page = get(&world, "/machines", &cookie).await.text;
    let pools = world.ask("get", "/api/v1/pools", Some(&world.admin), &[], "").await.body;
    let pool = pools["data"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["instances"].as_i64() > Some(40))
        .expect("the pool has them all");
    let all = pool["instances"].as_i64().unwrap();
    assert!(page.contains(&format!("<li>and {} more</li>", all - 25)), "{page}");
    let counted = format!(": {} free, {} busy", pool["available"], pool["busy"]);
    assert!(page.contains(&format!("{all} of ")) && page.contains(&counted), "{counted}: {page}");
}
