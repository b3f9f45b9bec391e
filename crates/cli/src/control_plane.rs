//! The control plane this command talks to: found, or started, and asked again when an answer got lost.
//! Every POST carries a key, so that asking again changes nothing twice.

use crate::complaint::{self, Complaint, Done};
use crate::embedded;
use crate::login;
use crate::private;
use crate::settings::Settings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::api::Page;
use wire::client::{ANSWER_WITHIN, Client, ClientError, Events, Method, Response};
use wire::model::crash_point;

/// How often a question is put before its failure is the user's; with the pauses below about three seconds.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// For a request that makes the control plane ask providers, which it does for four minutes at most.
pub const PROVIDERS_ASKED_WITHIN: Duration = Duration::from_secs(5 * 60);
/// For the trial of a provider, whose machine is ended after ten minutes at the latest.
pub const TRIED_WITHIN: Duration = Duration::from_secs(11 * 60);
/// A listing asks for this many at a time; not fewer, because a filter may leave little of a page.
const SMALLEST_PAGE: usize = 50;
const LARGEST_PAGE: usize = 500;
/// Pages of a listing in a row that have a next one and no entries.
const EMPTY_PAGES: usize = 100;
/// Bytes of all pages of a listing.
const LARGEST_LISTING: usize = 256 << 20;
pub const API: &str = "/api/v1";

pub struct ControlPlane {
    settings: Settings,
    /// Renewed when the embedded one comes back at another place.
    client: Mutex<Client>,
    /// Whether this command started it.
    pub started_here: bool,
}

impl ControlPlane {
    /// The one that is configured, or the embedded one, started if need be.
    pub async fn reach(settings: &Settings) -> Done<ControlPlane> {
        let (client, started_here) = connect(settings).await?;
        Ok(ControlPlane { settings: settings.clone(), client: Mutex::new(client), started_here })
    }

    /// The one that is there; never starts any.
    pub fn find(settings: &Settings) -> Done<Option<ControlPlane>> {
        let client = match &settings.url {
            Some(url) => remote(settings, url)?,
            None => match embedded::find(&settings.home)? {
                Some(holder) => local(settings, &holder)?,
                None => return Ok(None),
            },
        };
        Ok(Some(ControlPlane { settings: settings.clone(), client: Mutex::new(client), started_here: false }))
    }

    pub fn is_embedded(&self) -> bool {
        self.settings.url.is_none()
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Done<T> {
        let path = &format!("{API}{path}");
        self.patiently(|client| async move { client.get(path).await }).await
    }

    pub async fn post<B: Serialize + ?Sized, T: DeserializeOwned>(&self, path: &str, body: &B) -> Done<T> {
        self.post_keyed(path, body, &new_key()?).await
    }

    pub async fn post_keyed<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        key: &str,
    ) -> Done<T> {
        let path = &format!("{API}{path}");
        self.patiently(|client| async move {
            let request = client.request(Method::POST, path).header("idempotency-key", key).json(body);
            crash_point!("api.post", request.within(ANSWER_WITHIN).send().await)?.json().await
        })
        .await
    }

    /// A POST that only asks: there is nothing to do twice, so it needs no key.
    pub async fn question<B: Serialize + ?Sized, T: DeserializeOwned>(&self, path: &str, body: &B) -> Done<T> {
        self.question_within(path, body, ANSWER_WITHIN).await
    }

    /// A POST that takes minutes. It is asked again after a broken connection, and not when there was no answer in time.
    pub async fn post_within<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        within: Duration,
    ) -> Done<T> {
        let (path, key) = (&format!("{API}{path}"), &new_key()?);
        self.patiently_within(within, |client| async move {
            let request = client.request(Method::POST, path).header("idempotency-key", key).json(body);
            request.within(within).send().await?.json().await
        })
        .await
    }

    /// The same for one that only asks.
    pub async fn question_within<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        within: Duration,
    ) -> Done<T> {
        let path = &format!("{API}{path}");
        self.patiently_within(within, |client| async move {
            client.request(Method::POST, path).json(body).within(within).send().await?.json().await
        })
        .await
    }

    /// PUT and DELETE are the same however often they are asked.
    pub async fn put<B: Serialize + ?Sized, T: DeserializeOwned>(&self, path: &str, body: &B) -> Done<T> {
        let path = &format!("{API}{path}");
        self.patiently(|client| async move {
            client.request(Method::PUT, path).json(body).within(ANSWER_WITHIN).send().await?.json().await
        })
        .await
    }

    pub async fn delete(&self, path: &str) -> Done<()> {
        let (path, unanswered) = (&format!("{API}{path}"), &AtomicBool::new(false));
        self.patiently(|client| async move {
            let deleted = client.call(Method::DELETE, path).await;
            match &deleted {
                // It was there when we asked first: the answer to that got lost.
                Err(ClientError::Problem(problem)) if problem.status == 404 && unanswered.load(Relaxed) => Ok(()),
                Err(ClientError::Unreachable(_)) => {
                    unanswered.store(true, Relaxed);
                    deleted
                }
                _ => deleted,
            }
        })
        .await
    }

    /// A body of any length, for the caller to read piece by piece.
    pub async fn download(&self, path: &str) -> Done<Response> {
        let path = &format!("{API}{path}");
        self.patiently(|client| async move { client.request(Method::GET, path).send().await }).await
    }

    /// Up to `limit` entries of a listing, page by page.
    pub async fn list<T: DeserializeOwned>(&self, path: &str, limit: usize) -> Done<Vec<T>> {
        let joint = if path.contains('?') { '&' } else { '?' };
        gather(limit, async |size, cursor: Option<&str>| {
            let cursor = cursor.map_or_else(String::new, |cursor| format!("&cursor={}", wire::client::encode(cursor)));
            let path = &format!("{API}{path}{joint}limit={size}{cursor}");
            self.patiently(|client| async move {
                let body = client.request(Method::GET, path).within(ANSWER_WITHIN).send().await?.bytes().await?;
                Ok((wire::client::read(&body)?, body.len()))
            })
            .await
        })
        .await
    }

    /// One try at a stream; following on after a break is the caller's business.
    pub async fn events(&self, path: &str, last_event_id: Option<&str>) -> Result<Events, ClientError> {
        let client = self.client();
        client.events(&format!("{API}{path}"), last_event_id).await
    }

    /// Finds it again after a break, and starts the embedded one if it has ended.
    pub async fn again(&self) -> Done<()> {
        let (client, _) = connect(&self.settings).await?;
        *self.client.lock().expect("nobody panics while holding it") = client;
        Ok(())
    }

    pub fn client(&self) -> Client {
        self.client.lock().expect("nobody panics while holding it").clone()
    }

    /// What to say about an answer, or none, of this control plane.
    pub fn complaint(&self, error: &ClientError) -> Complaint {
        Complaint::of_answer(error, self.client().base())
    }

    /// A port that speaks TLS, or none, goes on doing so.
    pub fn is_worth_another_try(&self, error: &ClientError) -> bool {
        is_worth_another_try(error) && complaint::other_scheme(error, self.client().base()).is_none()
    }

    /// Puts a question until it is answered: through a restart, a busy key, a full server.
    pub async fn patiently<T, F: Future<Output = Result<T, ClientError>>>(&self, ask: impl Fn(Client) -> F) -> Done<T> {
        self.patiently_within(Duration::MAX, ask).await
    }

    /// The same, but a question that was not answered within this is not put again: what it began may still go on.
    async fn patiently_within<T, F: Future<Output = Result<T, ClientError>>>(
        &self,
        within: Duration,
        ask: impl Fn(Client) -> F,
    ) -> Done<T> {
        let mut pause = FIRST_PAUSE;
        for tried in 1.. {
            let asked_at = Instant::now();
            match ask(self.client()).await {
                Ok(answer) => return Ok(answer),
                Err(ClientError::Unreachable(_)) if asked_at.elapsed() >= within => {
                    let what = format!("the control plane did not answer within {} s", within.as_secs());
                    return Err(Complaint::usage(what).fix("see `repl doctor`, and the control plane's log"));
                }
                Err(error) if tried >= TRIES || !self.is_worth_another_try(&error) => {
                    return Err(self.complaint(&error));
                }
                Err(ClientError::Unreachable(_)) if self.is_embedded() => self.again().await?,
                Err(_) => {}
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        unreachable!("the last try returns")
    }
}

/// Asks for pages, with their size and cursor, until there are `limit` entries or no more pages. Ends also when the server's pages do not
/// end: what is answered, and how often, is decided there.
async fn gather<T>(limit: usize, ask: impl AsyncFn(usize, Option<&str>) -> Done<(Page<T>, usize)>) -> Done<Vec<T>> {
    let mut found: Vec<T> = Vec::new();
    let mut cursor: Option<String> = None;
    let mut cursors = HashSet::new();
    let (mut empty, mut bytes) = (0, 0);
    while found.len() < limit {
        let size = (limit - found.len()).clamp(SMALLEST_PAGE, LARGEST_PAGE);
        let (page, length) = ask(size, cursor.as_deref()).await?;
        (empty, bytes) = (if page.data.is_empty() { empty + 1 } else { 0 }, bytes + length);
        found.extend(page.data);
        let Some(next) = page.next_cursor else { break };
        let refused = if !cursors.insert(next.clone()) {
            Some("a listing that comes back to a page it had".to_owned())
        } else if empty == EMPTY_PAGES {
            Some(format!("a listing with {EMPTY_PAGES} empty pages in a row"))
        } else if bytes > LARGEST_LISTING {
            Some(format!("a listing of more than {} MiB", LARGEST_LISTING >> 20))
        } else {
            None
        };
        match refused {
            Some(why) => return Err(ClientError::TooMuch(why).into()),
            None => cursor = Some(next),
        }
    }
    found.truncate(limit);
    Ok(found)
}

/// A random key in the form of a UUID.
pub fn new_key() -> Done<String> {
    use std::io::Read as _;
    let mut bytes = [0u8; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|error| Complaint::usage(format!("no randomness from /dev/urandom: {error}")))?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

fn is_worth_another_try(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable(_) => true,
        ClientError::Problem(problem) => {
            matches!(problem.status, 429 | 502..=504) || problem.code == "idempotency_key_busy"
        }
        ClientError::Protocol(_) | ClientError::TooMuch(_) => false,
    }
}

async fn connect(settings: &Settings) -> Done<(Client, bool)> {
    match &settings.url {
        Some(url) => remote(settings, url).map(|client| (client, false)),
        None => {
            let (holder, started) = embedded::ensure(settings).await?;
            local(settings, &holder).map(|client| (client, started))
        }
    }
}

fn local(settings: &Settings, holder: &embedded::Holder) -> Done<Client> {
    let of_a_file = settings.tokens.files.iter().find(|(url, _)| url.is_none()).map(|(_, token)| token.clone());
    let token = settings
        .tokens
        .environment
        .clone()
        .or(of_a_file)
        .map_or_else(|| home_token(settings), |token| Ok(Some(token)))?;
    Ok(Client::new(&format!("unix:{}", holder.socket.display()), token.as_deref())?)
}

/// The address that is checked is the address that is used: both in its one spelling.
fn remote(settings: &Settings, url: &str) -> Done<Client> {
    let url = login::normal(url)?;
    let token = login::token_for(settings, &url)?;
    if let Some(complaint) = login::refused_without(settings, &url).filter(|_| token.is_none()) {
        return Err(complaint);
    }
    let authorities = settings.authorities()?;
    Ok(Client::trusting(&url, token.as_deref(), authorities.as_deref())?)
}

pub fn home_token(settings: &Settings) -> Done<Option<String>> {
    Ok(private::read(&settings.home.join("token"))?.map(|text| text.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_is_asked_again() {
        let problem = |status, code: &str| {
            let problem = wire::client::Problem { status, code: code.to_owned(), ..Default::default() };
            ClientError::Problem(Box::new(problem))
        };
        for (error, again) in [
            (problem(500, "internal"), false),
            (problem(503, "unavailable"), true),
            (problem(429, "rate_limited"), true),
            (problem(409, "idempotency_key_busy"), true),
            (problem(409, "conflict"), false),
            (ClientError::Unreachable("gone".into()), true),
            (ClientError::Protocol("nonsense".into()), false),
            (ClientError::TooMuch("a page of a terabyte".into()), false),
        ] {
            assert_eq!(is_worth_another_try(&error), again, "{error:?}");
        }
    }

    #[tokio::test]
    async fn what_was_not_answered_in_time_is_not_asked_again() {
        let home = tempfile::tempdir().unwrap();
        let flags = crate::settings::Flags {
            home: Some(home.path().to_owned()),
            url: Some("http://127.0.0.1:9".to_owned()),
            ..Default::default()
        };
        let settings = Settings::read_from(&flags, &|_| None, home.path()).unwrap();
        let client = Client::new("http://127.0.0.1:9", None).unwrap();
        let plane = ControlPlane { settings, client: Mutex::new(client), started_here: false };
        let asked = std::cell::Cell::new(0);
        let answer: Done<()> = plane
            .patiently_within(Duration::ZERO, |_| {
                asked.set(asked.get() + 1);
                std::future::ready(Err(ClientError::Unreachable("operation timed out".to_owned())))
            })
            .await;
        assert_eq!((answer.unwrap_err().text.contains("did not answer within"), asked.get()), (true, 1));
    }

    /// What becomes of a listing with this limit whose page number `n` has this many entries and that cursor.
    async fn listed(limit: usize, page: impl Fn(usize) -> (usize, Option<String>)) -> (Done<Vec<usize>>, usize) {
        let asked = std::cell::Cell::new(0);
        let found = gather(limit, async |_, _| {
            let number = asked.replace(asked.get() + 1);
            let (entries, next_cursor) = page(number);
            Ok((Page { data: vec![number; entries], next_cursor }, 1 << 20))
        });
        (found.await, asked.get())
    }

    #[tokio::test]
    async fn a_listing_ends_although_its_pages_do_not() {
        let forever = |page: usize| Some(format!("c{page}"));
        let (found, asked) = listed(120, |page| (50, forever(page))).await;
        assert_eq!((found.unwrap().len(), asked), (120, 3));
        let (found, _) =
            listed(1000, |page| (usize::from(page % 99 == 98), forever(page).filter(|_| page < 200))).await;
        assert_eq!(found.unwrap(), [98, 197], "a filter may leave many pages empty");
        for (what, (found, asked), pages) in [
            ("empty pages", listed(1000, |page| (0, forever(page))).await, EMPTY_PAGES),
            ("the same cursor", listed(1000, |_| (1, Some("c".to_owned()))).await, 2),
            ("a circle", listed(1000, |page| (1, forever(page % 3))).await, 4),
            ("large pages", listed(1000, |page| (1, forever(page))).await, 257),
        ] {
            let complaint = found.unwrap_err();
            assert!(complaint.text.contains("sends too much: a listing"), "{what}: {complaint}");
            assert_eq!(asked, pages, "{what}");
        }
    }

    #[test]
    fn keys_look_like_uuids_and_differ() {
        let (one, two) = (new_key().unwrap(), new_key().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
    }
}
