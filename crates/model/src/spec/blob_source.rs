//! Where machines read the contents of files.

use crate::string_enum;

string_enum! {
    /// `direct`: from the blob store, which they can reach themselves. `control_plane`: from the control plane, which has them from there.
    pub enum BlobSource { Direct = "direct", ControlPlane = "control_plane" }
}
