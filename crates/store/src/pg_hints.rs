//! Exchanges hints with other processes on a connection of its own: `pg_notify` at most every 5 ms, never inside a transaction of a
//! closure (that halves throughput), and LISTEN. Whenever hints may have been missed, all local listeners get `Hint::Everything`.

use crate::hint::{Hint, Hints, keep_the_earliest};
use crate::installation::random;
use crate::pg_address::Address;
use futures_util::StreamExt;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client};

const CHANNEL: &str = "remuda";
const SEND_EVERY: Duration = Duration::from_millis(5);
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// The fallback poll: after a process dies between its commit and its hint, listeners wait at most this long.
const LOOK_AGAIN_EVERY: Duration = Duration::from_secs(5);
/// PostgreSQL allows 8000.
const PAYLOAD_BYTES: usize = 7000;

/// Serves until the store is closed.
pub(crate) async fn serve(address: Address, here: Hints, mut committed: UnboundedReceiver<BTreeSet<Hint>>) {
    let me = format!("{:016x}", u64::from_le_bytes(random()));
    while !committed.is_closed() {
        let Ok((client, mut connection)) = address.connect().await else {
            forget_for(RECONNECT_AFTER, &mut committed).await;
            continue;
        };
        let (heard, mut hearing) = unbounded_channel();
        tokio::spawn(async move {
            let mut messages = std::pin::pin!(futures_util::stream::poll_fn(move |cx| connection.poll_message(cx)));
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(note) = message {
                    // An error means that the other half has given up this connection.
                    let _ = heard.send(note.payload().to_owned());
                }
            }
        });
        if client.batch_execute(&format!("LISTEN {CHANNEL}")).await.is_err() {
            forget_for(RECONNECT_AFTER, &mut committed).await;
            continue;
        }
        let everything = BTreeSet::from([Hint::Everything]);
        here.heard(&everything);
        // Other processes have missed what this process, or its predecessor, could not send.
        if send(&client, &everything, &me).await.is_err() {
            continue;
        }
        exchange(&client, &me, &here, &mut committed, &mut hearing).await;
    }
}

/// Until the connection is lost or the store is closed.
#[expect(clippy::disallowed_methods, reason = "the pause that makes many hints one notification")]
async fn exchange(
    client: &Client,
    me: &str,
    here: &Hints,
    committed: &mut UnboundedReceiver<BTreeSet<Hint>>,
    hearing: &mut UnboundedReceiver<String>,
) {
    let mut net = tokio::time::interval_at(tokio::time::Instant::now() + LOOK_AGAIN_EVERY, LOOK_AGAIN_EVERY);
    net.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = net.tick() => here.heard(&BTreeSet::from([Hint::Everything])),
            payload = hearing.recv() => match payload {
                Some(payload) => here.heard(&read(&payload, me)),
                None => return,
            },
            hints = committed.recv() => {
                let Some(mut hints) = hints else { return };
                while let Ok(more) = committed.try_recv() {
                    hints.extend(more);
                }
                keep_the_earliest(&mut hints);
                if send(client, &hints, me).await.is_err() {
                    return;
                }
                tokio::time::sleep(SEND_EVERY).await;
            }
        }
    }
}

async fn send(client: &Client, hints: &BTreeSet<Hint>, me: &str) -> Result<(), tokio_postgres::Error> {
    for payload in payloads(hints, me) {
        client.execute("SELECT pg_notify($1, $2)", &[&CHANNEL, &payload]).await?;
    }
    Ok(())
}

/// Drops hints that cannot be sent: after a reconnect all processes get `Hint::Everything`.
async fn forget_for(pause: Duration, committed: &mut UnboundedReceiver<BTreeSet<Hint>>) {
    let drained = async { while committed.recv().await.is_some() {} };
    let _ = tokio::time::timeout(pause, drained).await;
}

fn payloads(hints: &BTreeSet<Hint>, me: &str) -> Vec<String> {
    let mut payloads = vec![me.to_owned()];
    for hint in hints {
        let line = hint.to_line();
        let last = payloads.last_mut().expect("there is one from the start");
        if last.len() + line.len() + 1 > PAYLOAD_BYTES {
            payloads.push(format!("{me} {line}"));
        } else {
            last.push(' ');
            last.push_str(&line);
        }
    }
    payloads
}

/// PostgreSQL also sends a process its own notifications: they are ignored.
fn read(payload: &str, me: &str) -> BTreeSet<Hint> {
    let mut words = payload.split(' ');
    if words.next() == Some(me) { BTreeSet::new() } else { words.filter_map(Hint::from_line).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::RunId;

    #[test]
    fn hints_are_packed_and_read_by_others_only() {
        let hints: BTreeSet<Hint> = (0..3000).map(|n| Hint::Run(RunId(1_000_000 + n))).collect();
        let payloads = payloads(&hints, "me");
        assert!(payloads.len() > 2 && payloads.iter().all(|payload| payload.len() <= PAYLOAD_BYTES));
        let heard: BTreeSet<Hint> = payloads.iter().flat_map(|payload| read(payload, "other")).collect();
        assert_eq!(heard, hints);
        assert!(payloads.iter().all(|payload| read(payload, "me").is_empty()));
    }
}
