//! The fake's faults: each does what it says, since everything simulated rests on them.

use adapters::conformance::order;
use adapters::fake::{Call, FakeSettings, Fate, MachineState};
use adapters::{FakeProvider, Handle, Provider, Seen};
use model::{Effect, TroubleKind};
use std::collections::VecDeque;

fn scripted(settings: FakeSettings, script: &[(Call, Fate)]) -> FakeProvider {
    let mut script: VecDeque<_> = script.iter().copied().collect();
    let decide = move |call, _: &str| match script.front() {
        Some((next, fate)) if *next == call => {
            let fate = *fate;
            script.pop_front();
            fate
        }
        _ => Fate::Obey,
    };
    FakeProvider::new(settings, Box::new(decide))
}

#[tokio::test]
async fn a_spawn_may_fail_before_or_after_its_effect() {
    for (fate, exists, effect) in [
        (Fate::FailBefore(TroubleKind::Capacity), false, Effect::None),
        (Fate::FailBefore(TroubleKind::RateLimit), false, Effect::None),
        (Fate::FailBefore(TroubleKind::Timeout), false, Effect::Perhaps),
        (Fate::FailAfter(TroubleKind::Timeout), true, Effect::Perhaps),
        (Fate::FailAfter(TroubleKind::Network), true, Effect::Perhaps),
    ] {
        let fake = scripted(FakeSettings::default(), &[(Call::Spawn, fate)]);
        let order = order(1);
        assert_eq!(fake.spawn(&order).await.unwrap_err().effect, effect, "{fate:?}");
        assert_eq!(fake.find_by_name(&order.boot.name).await.unwrap().is_some(), exists, "{fate:?}");
        fake.spawn(&order).await.unwrap();
        assert_eq!(fake.machine(&order.boot.name).unwrap().starts, 1, "{fate:?}");
    }
}

#[tokio::test]
async fn a_new_machine_appears_in_lists_late() {
    let fake = scripted(FakeSettings { list_lag_calls: 2, ..FakeSettings::default() }, &[]);
    let order = order(1);
    let handle = fake.spawn(&order).await.unwrap();
    assert_eq!(fake.find_by_name(&order.boot.name).await.unwrap(), None);
    assert_eq!(fake.list(&adapters::ListAsk::of("repl-")).await.unwrap().listed, []);
    assert_eq!(fake.find_by_name(&order.boot.name).await.unwrap(), Some(handle.clone()));
    assert_eq!(fake.inspect(&handle, &order.boot.nonce).await.unwrap(), Seen::Alive, "a handle finds it at once");
}

#[tokio::test]
async fn a_machine_may_take_its_time_to_go() {
    let fake = scripted(FakeSettings { gone_lag_calls: 2, ..FakeSettings::default() }, &[]);
    let order = order(1);
    let handle = fake.spawn(&order).await.unwrap();
    let going = fake.terminate(&handle, &order.boot.nonce).await.unwrap_err();
    assert_eq!((going.kind, going.retry), (TroubleKind::Timeout, true));
    assert_eq!(fake.inspect(&handle, &order.boot.nonce).await.unwrap(), Seen::Alive);
    fake.terminate(&handle, &order.boot.nonce).await.unwrap();
    assert_eq!(fake.inspect(&handle, &order.boot.nonce).await.unwrap(), Seen::Gone);
}

#[tokio::test]
async fn a_terminate_that_was_not_heard_of_happened() {
    let fake = scripted(FakeSettings::default(), &[(Call::Terminate, Fate::FailAfter(TroubleKind::Network))]);
    let order = order(1);
    let handle = fake.spawn(&order).await.unwrap();
    assert!(fake.terminate(&handle, &order.boot.nonce).await.is_err());
    assert_eq!(fake.machine(&order.boot.name).unwrap().state, MachineState::Gone);
    fake.terminate(&handle, &order.boot.nonce).await.unwrap();
}

#[tokio::test]
async fn a_machine_that_was_destroyed_is_gone_for_good() {
    let fake = FakeProvider::obedient();
    let order = order(1);
    let handle = fake.spawn(&order).await.unwrap();
    fake.destroy(&order.boot.name);
    assert_eq!(fake.inspect(&handle, &order.boot.nonce).await.unwrap(), Seen::Gone);
    assert_eq!(fake.spawn(&order).await.unwrap_err().kind, TroubleKind::NotFound);
    fake.terminate(&Handle(order.boot.name), &order.boot.nonce).await.unwrap();
}
