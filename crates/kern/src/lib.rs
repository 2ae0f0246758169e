//! anabranch-kern
