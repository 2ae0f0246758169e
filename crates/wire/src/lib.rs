//! anabranch-wire
