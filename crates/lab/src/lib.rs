//! anabranch-lab

pub mod netns;
