//! The virtual-time network: hosts with a TCP of their own, wires, routers, links, and any element.
pub mod stream;
pub mod tcp;
