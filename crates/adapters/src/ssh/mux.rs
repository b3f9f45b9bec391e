//! Several connections over one pair of pipes. Each direction of each connection has a window, so that one that its end does not read holds up no
//! other, and neither side keeps more than a window of it in memory. Knows nothing of what the bytes mean.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

/// Bytes under way in one direction of one connection.
const WINDOW: u32 = 256 << 10;
const PIECE: usize = 16 << 10;
/// Connections at once; a runner and its jobs have a few.
const CONNECTIONS: usize = 256;
/// Frames that wait for the pipe.
const WAITING: usize = 16;

/// Either end of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

pub type Connection = Box<dyn Duplex>;
pub type DialFuture = Pin<Box<dyn Future<Output = io::Result<Connection>> + Send>>;
/// Opens a connection to the control plane.
pub type Dial = Arc<dyn Fn() -> DialFuture + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Open = 1,
    Data = 2,
    /// No more data in this direction.
    End = 3,
    /// Neither direction goes on.
    Reset = 4,
    /// So many bytes were taken.
    Taken = 5,
}

struct Frame {
    id: u32,
    kind: Kind,
    body: Body,
}

enum Body {
    Bytes(Vec<u8>),
    Count(u32),
}

/// What a connection is told by the other side.
enum Told {
    Data(Vec<u8>),
    End,
    Reset,
}

/// What the reader of the pipe knows of a connection.
struct Channel {
    tell: mpsc::UnboundedSender<Told>,
    window: Arc<Semaphore>,
    /// Received and not yet taken.
    kept: Arc<AtomicU32>,
}

/// Connections that come here are carried to the other side, until the pipe ends.
pub async fn accept(
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
    incoming: mpsc::Receiver<Connection>,
) -> io::Result<()> {
    carry_all(from, to, incoming, None).await
}

/// Connections that the other side opens are dialled here, until the pipe ends.
pub async fn dial(from: impl AsyncRead + Unpin, to: impl AsyncWrite + Unpin, dial: Dial) -> io::Result<()> {
    let (_none, incoming) = mpsc::channel(1);
    carry_all(from, to, incoming, Some(dial)).await
}

async fn carry_all(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut incoming: mpsc::Receiver<Connection>,
    dial: Option<Dial>,
) -> io::Result<()> {
    let (out, mut frames) = mpsc::channel::<Frame>(WAITING);
    let (heard_out, mut heard) = mpsc::channel::<io::Result<Frame>>(WAITING);
    let reads = async {
        loop {
            let frame = read(&mut from).await;
            let last = frame.is_err();
            if heard_out.send(frame).await.is_err() || last {
                return;
            }
        }
    };
    let writes = async {
        while let Some(frame) = frames.recv().await {
            write(&mut to, frame).await?;
            while let Ok(frame) = frames.try_recv() {
                write(&mut to, frame).await?;
            }
            to.flush().await?;
        }
        io::Result::Ok(())
    };
    let serves = async {
        let (mut known, mut next, mut tasks) = (BTreeMap::<u32, Channel>::new(), 1u32, JoinSet::new());
        loop {
            tokio::select! {
                Some(connection) = incoming.recv() => {
                    if known.len() >= CONNECTIONS {
                        continue; // closed at once: it is tried again
                    }
                    let (id, told) = (next, remember(&mut known, next));
                    next = next.wrapping_add(1).max(1);
                    let (out, entry) = (out.clone(), share(&known[&id]));
                    tasks.spawn(async move {
                        let _ = out.send(Frame { id, kind: Kind::Open, body: Body::Count(0) }).await;
                        carry(id, Ok(connection), told, out, entry).await
                    });
                }
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                    if let Ok(id) = ended {
                        known.remove(&id);
                    }
                }
                frame = heard.recv() => {
                    let Some(frame) = frame.transpose()? else { return Ok(()) };
                    let Frame { id, kind, body } = frame;
                    if kind == Kind::Open && let Some(dial) = dial.clone().filter(|_| known.len() < CONNECTIONS && !known.contains_key(&id)) {
                        let told = remember(&mut known, id);
                        let (out, entry) = (out.clone(), share(&known[&id]));
                        tasks.spawn(async move { carry(id, dial().await, told, out, entry).await });
                        continue;
                    }
                    hear(&known, id, kind, body)?;
                }
            }
        }
    };
    // Whichever of them ends, the connection is over.
    tokio::select! {
        () = reads => Ok(()),
        written = writes => written,
        served = serves => served,
    }
}

fn remember(known: &mut BTreeMap<u32, Channel>, id: u32) -> mpsc::UnboundedReceiver<Told> {
    let (tell, told) = mpsc::unbounded_channel();
    known.insert(id, Channel { tell, window: Arc::new(Semaphore::new(WINDOW as usize)), kept: Arc::default() });
    told
}

fn share(known: &Channel) -> (Arc<Semaphore>, Arc<AtomicU32>) {
    (known.window.clone(), known.kept.clone())
}

/// A frame of a connection that has ended means nothing any more.
fn hear(known: &BTreeMap<u32, Channel>, id: u32, kind: Kind, body: Body) -> io::Result<()> {
    let Some(entry) = known.get(&id) else { return Ok(()) };
    let told = match (kind, body) {
        (Kind::Data, Body::Bytes(bytes)) => {
            let kept = entry.kept.fetch_add(bytes.len() as u32, Ordering::Relaxed) + bytes.len() as u32;
            if kept > WINDOW {
                return Err(io::Error::other("the other side sends more than it may"));
            }
            Told::Data(bytes)
        }
        (Kind::Taken, Body::Count(count)) => {
            let free = entry.window.available_permits() + count as usize;
            entry.window.add_permits(count.min(WINDOW).min((WINDOW as usize * 2).saturating_sub(free) as u32) as usize);
            return Ok(());
        }
        (Kind::End, _) => Told::End,
        (Kind::Reset, _) => Told::Reset,
        _ => return Ok(()),
    };
    let _ = entry.tell.send(told);
    Ok(())
}

/// Both directions of one connection, until both have ended or one has failed.
async fn carry(
    id: u32,
    connection: io::Result<Connection>,
    mut told: mpsc::UnboundedReceiver<Told>,
    out: mpsc::Sender<Frame>,
    (window, kept): (Arc<Semaphore>, Arc<AtomicU32>),
) -> u32 {
    let reset = Frame { id, kind: Kind::Reset, body: Body::Count(0) };
    let Ok(connection) = connection else {
        let _ = out.send(reset).await;
        return id;
    };
    let (mut reads, mut writes) = tokio::io::split(connection);
    let up = async {
        loop {
            let mut piece = vec![0; PIECE];
            let length = reads.read(&mut piece).await?;
            if length == 0 {
                return send(&out, Frame { id, kind: Kind::End, body: Body::Count(0) }).await;
            }
            piece.truncate(length);
            window.acquire_many(length as u32).await.map_err(io::Error::other)?.forget();
            send(&out, Frame { id, kind: Kind::Data, body: Body::Bytes(piece) }).await?;
        }
    };
    let down = async {
        loop {
            match told.recv().await {
                Some(Told::Data(bytes)) => {
                    writes.write_all(&bytes).await?;
                    let count = bytes.len() as u32;
                    kept.fetch_sub(count, Ordering::Relaxed);
                    send(&out, Frame { id, kind: Kind::Taken, body: Body::Count(count) }).await?;
                }
                Some(Told::End) => return writes.shutdown().await,
                Some(Told::Reset) | None => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
    };
    // One direction may go on when the other has ended.
    let ended: io::Result<((), ())> = async { tokio::try_join!(up, down) }.await;
    if ended.is_err() {
        let _ = out.send(reset).await;
    }
    id
}

async fn send(out: &mpsc::Sender<Frame>, frame: Frame) -> io::Result<()> {
    out.send(frame).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
}

async fn write(to: &mut (impl AsyncWrite + Unpin), frame: Frame) -> io::Result<()> {
    let (count, bytes) = match frame.body {
        Body::Bytes(bytes) => (bytes.len() as u32, bytes),
        Body::Count(count) => (count, Vec::new()),
    };
    let mut head = [0; 9];
    head[..4].copy_from_slice(&frame.id.to_be_bytes());
    head[4] = frame.kind as u8;
    head[5..].copy_from_slice(&count.to_be_bytes());
    to.write_all(&head).await?;
    to.write_all(&bytes).await
}

async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    let mut head = [0; 9];
    from.read_exact(&mut head).await?;
    let id = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    let count = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    let kind = match head[4] {
        1 => Kind::Open,
        2 => Kind::Data,
        3 => Kind::End,
        4 => Kind::Reset,
        5 => Kind::Taken,
        _ => return Err(io::Error::other("what comes through the relay is not of its protocol")),
    };
    let body = match kind {
        Kind::Data if count as usize > PIECE => return Err(io::Error::other("a frame is too large")),
        Kind::Data => {
            let mut bytes = vec![0; count as usize];
            from.read_exact(&mut bytes).await?;
            Body::Bytes(bytes)
        }
        _ => Body::Count(count),
    };
    Ok(Frame { id, kind, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ends of a link, and what opens connections on the one; the other dials an echo.
    fn linked(dial: Dial) -> (mpsc::Sender<Connection>, JoinSet<io::Result<()>>) {
        let (near, far) = tokio::io::duplex(4 << 10);
        let ((near_in, near_out), (far_in, far_out)) = (tokio::io::split(near), tokio::io::split(far));
        let (open, incoming) = mpsc::channel(1);
        let mut ends = JoinSet::new();
        ends.spawn(accept(near_in, near_out, incoming));
        ends.spawn(super::dial(far_in, far_out, dial));
        (open, ends)
    }

    fn echo() -> Dial {
        Arc::new(|| {
            let (here, there) = tokio::io::duplex(1 << 10);
            tokio::spawn(async move {
                let (mut from, mut to) = tokio::io::split(there);
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
            Box::pin(std::future::ready(Ok(Box::new(here) as Connection)))
        })
    }

    async fn open(to: &mpsc::Sender<Connection>) -> tokio::io::DuplexStream {
        let (mine, theirs) = tokio::io::duplex(1 << 10);
        to.send(Box::new(theirs)).await.unwrap();
        mine
    }

    #[tokio::test]
    async fn much_comes_back_as_it_was_sent_on_many_connections_at_once() {
        let (to, _ends) = linked(echo());
        let mut tasks = JoinSet::new();
        for number in 0..8u8 {
            let (mut from, mut into) = tokio::io::split(open(&to).await);
            tasks.spawn(async move {
                let sent = vec![number; 3 * WINDOW as usize];
                let copy = sent.clone();
                let writes = async {
                    into.write_all(&copy).await.unwrap();
                    into.shutdown().await.unwrap();
                };
                let mut back = Vec::new();
                let ((), read) = tokio::join!(writes, from.read_to_end(&mut back));
                read.unwrap();
                assert!(back == sent);
            });
        }
        tasks.join_all().await;
    }

    #[tokio::test]
    async fn a_connection_that_nobody_reads_holds_up_no_other() {
        let (to, _ends) = linked(echo());
        let mut stuck = open(&to).await;
        // More than the pipes on the way keep: the rest waits until the other end reads.
        let fill = vec![1; 4 * WINDOW as usize];
        let (mut from, mut into) = tokio::io::split(open(&to).await);
        let other = async {
            into.write_all(b"hello").await.unwrap();
            let mut back = [0; 5];
            from.read_exact(&mut back).await.unwrap();
            assert_eq!(&back, b"hello");
        };
        tokio::select! {
            _ = stuck.write_all(&fill) => panic!("nobody has read it"),
            () = async { for _ in 0..1000 { tokio::task::yield_now().await } other.await } => {}
        }
    }

    #[tokio::test]
    async fn a_control_plane_that_is_not_there_is_a_closed_connection() {
        let (to, _ends) =
            linked(Arc::new(|| Box::pin(std::future::ready(Err(io::ErrorKind::ConnectionRefused.into())))));
        let mut mine = open(&to).await;
        let mut nothing = Vec::new();
        assert_eq!(mine.read_to_end(&mut nothing).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn the_end_of_the_pipe_ends_every_connection() {
        let (near, far) = tokio::io::duplex(4 << 10);
        let ((near_in, near_out), far) = (tokio::io::split(near), far);
        let (to, incoming) = mpsc::channel(1);
        let link = tokio::spawn(accept(near_in, near_out, incoming));
        let mut mine = open(&to).await;
        drop(far);
        let _ = link.await.unwrap();
        let mut nothing = Vec::new();
        assert_eq!(mine.read_to_end(&mut nothing).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn who_sends_more_than_they_may_is_cut_off() {
        let (near, mut far) = tokio::io::duplex(4 << 10);
        let (near_in, near_out) = tokio::io::split(near);
        // A dial that takes nothing.
        let (held, _other) = tokio::io::duplex(1);
        let held = std::sync::Mutex::new(Some(held));
        let never: Dial = Arc::new(move || {
            let held = held.lock().unwrap().take();
            Box::pin(
                async move { held.map(|held| Box::new(held) as Connection).ok_or_else(|| io::Error::other("one")) },
            )
        });
        let link = tokio::spawn(dial(near_in, near_out, never));
        write(&mut far, Frame { id: 1, kind: Kind::Open, body: Body::Count(0) }).await.unwrap();
        while write(&mut far, Frame { id: 1, kind: Kind::Data, body: Body::Bytes(vec![0; PIECE]) }).await.is_ok() {}
        link.await.unwrap().unwrap_err();
    }
}
