//! Contents: files and folders' documents by their hash, sent before the run that names them. Rows first, then bytes, then the mark that
//! they are here; a tree is linked to all it names before it counts.

use crate::Engine;
use model::tree::{Child, DOCUMENT_BYTES, Tree};
use model::{Failure, OrgId, Refused};
use std::sync::Arc;
use store::Lane;
pub use store::blob::BlobHash;
use store::blob::{BlobName, Download, Upload};

/// Links of a tree that are written in one transaction.
const LINKED_AT_ONCE: usize = 500;

/// A small content that came with others.
#[derive(Debug, Clone)]
pub struct Small {
    pub is_tree: bool,
    pub hash: String,
    pub bytes: Vec<u8>,
}

impl Engine {
    /// Which of these contents this org has not sent yet.
    pub async fn missing_blobs(&self, org: OrgId, hashes: Vec<String>) -> Result<Vec<String>, Failure> {
        self.missing(org, hashes, false).await
    }

    /// Which of these trees are not here as a whole.
    pub async fn missing_trees(&self, org: OrgId, hashes: Vec<String>) -> Result<Vec<String>, Failure> {
        self.missing(org, hashes, true).await
    }

    async fn missing(&self, org: OrgId, mut hashes: Vec<String>, as_trees: bool) -> Result<Vec<String>, Failure> {
        hashes.iter().try_for_each(|hash| hash_of(hash).map(drop))?;
        hashes.sort();
        hashes.dedup();
        if hashes.is_empty() {
            return Ok(hashes);
        }
        self.store.read("blob.rows", move |tx| store::content::missing(tx, org, &hashes, as_trees)).await
    }

    /// One content of any size.
    pub async fn keep_blob(&self, org: OrgId, hash: &str, upload: Upload) -> Result<(), Failure> {
        let hash = hash_of(hash)?;
        if upload.stored().hash != hash {
            return Err(Refused::invalid("hash", format!("the bytes hash to {}", upload.stored().hash)).into());
        }
        let texts = Arc::new(vec![hash.to_string()]);
        self.announce_contents(org, texts.clone()).await?;
        upload.keep_content_async(org, Some(hash)).await?;
        self.mark_kept(org, texts).await
    }

    /// The document of a folder, which names only what is here.
    pub async fn keep_tree(&self, org: OrgId, hash: &str, upload: Upload) -> Result<(), Failure> {
        if upload.stored().size > DOCUMENT_BYTES {
            return Err(Refused::TooLarge { what: "the document of a folder", limit: "256 MiB".into() }.into());
        }
        let id = hash_of(hash)?;
        // Read before it counts as here: what is no tree is refused and leaves nothing that could be taken for one.
        self.keep_blob(org, hash, upload).await?;
        let blobs = self.blobs.clone();
        let tree = store::blob::blocking(move || {
            let document = blobs.open(&BlobName::Content { org, hash: id })?.read_all()?;
            Ok(Tree::parse(&document)?)
        });
        self.link_tree(org, hash, &tree.await?).await
    }

    /// Many small contents at once. Trees come behind what they name.
    pub async fn keep_pack(&self, org: OrgId, pack: Vec<Small>) -> Result<(), Failure> {
        let mut trees = Vec::new();
        for small in &pack {
            let bytes_hash = BlobHash::of(&small.bytes);
            if hash_of(&small.hash)? != bytes_hash {
                let why = format!("the bytes sent as {} hash to {bytes_hash}", small.hash);
                return Err(Refused::invalid("hash", why).into());
            }
            if small.is_tree {
                trees.push((small.hash.clone(), Tree::parse(&small.bytes)?));
            }
        }
        let mut texts: Vec<String> = pack.iter().map(|small| small.hash.clone()).collect();
        texts.sort();
        texts.dedup();
        let texts = Arc::new(texts);
        self.announce_contents(org, texts.clone()).await?;
        let blobs = self.blobs.clone();
        store::blob::blocking(move || {
            let contents: Vec<_> = pack.into_iter().map(|small| (BlobHash::of(&small.bytes), small.bytes)).collect();
            blobs.keep_contents(org, &contents)
        })
        .await?;
        self.mark_kept(org, texts).await?;
        for (hash, tree) in trees {
            self.link_tree(org, &hash, &tree).await?;
        }
        Ok(())
    }

    async fn announce_contents(&self, org: OrgId, hashes: Arc<Vec<String>>) -> Result<(), Failure> {
        self.store
            .write(Lane::Normal, "blob.announce", move |tx| {
                hashes.iter().try_for_each(|hash| store::content::announce(tx, org, hash))
            })
            .await
    }

    async fn mark_kept(&self, org: OrgId, hashes: Arc<Vec<String>>) -> Result<(), Failure> {
        self.store
            .write(Lane::Normal, "blob.kept", move |tx| {
                hashes.iter().try_for_each(|hash| store::content::kept(tx, org, hash))
            })
            .await
    }

    /// In pieces, so that a folder of many files does not keep other writers waiting; the last piece says that the tree is here.
    async fn link_tree(&self, org: OrgId, hash: &str, tree: &Tree) -> Result<(), Failure> {
        let mut children: Vec<(String, bool)> =
            tree.children().map(|child| (child.hash.to_owned(), child.is_tree)).collect();
        // A file with the bytes of a folder's document: linked as the folder, which is the stronger claim.
        children.sort_by(|left, right| (&left.0, !left.1).cmp(&(&right.0, !right.1)));
        children.dedup_by(|later, earlier| later.0 == earlier.0);
        let (children, hash) = (Arc::new(children), hash.to_owned());
        let pieces = children.len().div_ceil(LINKED_AT_ONCE).max(1);
        for piece in 0..pieces {
            let (children, hash) = (children.clone(), hash.clone());
            self.store
                .write(Lane::Normal, "tree.link", move |tx| {
                    let all: Vec<Child<'_>> =
                        children.iter().map(|(hash, is_tree)| Child { hash, is_tree: *is_tree }).collect();
                    let from = piece * LINKED_AT_ONCE;
                    let to = all.len().min(from + LINKED_AT_ONCE);
                    store::content::link(tx, org, &hash, &all[from..to])?;
                    if piece + 1 == pieces {
                        store::content::finish_tree(tx, org, &hash, &all)?;
                    }
                    Ok(())
                })
                .await?;
        }
        Ok(())
    }

    pub fn open_blob(&self, org: OrgId, hash: &str) -> Result<Download, Failure> {
        self.blobs.open(&BlobName::Content { org, hash: hash_of(hash)? })
    }
}

fn hash_of(text: &str) -> Result<BlobHash, Refused> {
    text.parse().map_err(|_| Refused::invalid("hash", format!("`{text}` is not a BLAKE3 hash in hex")))
}
