//! RLC PDUs: whatever parses is written and read again as the same, in every mode and length of SN.
#![no_main]

use anabranch_wire::rlc::{AmPdu, AmSn, Nack, StatusWriter, UmHeader, UmSn};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for sn in [UmSn::Bits6, UmSn::Bits12] {
        if let Ok((header, sdu)) = UmHeader::parse(data, sn) {
            let mut again = data.to_vec();
            let len = header.emit(sn, &mut again).expect("room");
            assert_eq!(&again[len..], sdu);
            assert_eq!(UmHeader::parse(&again, sn), Ok((header, sdu)));
        }
    }
    for sn in [AmSn::Bits12, AmSn::Bits18] {
        match AmPdu::parse(data, sn) {
            Ok(AmPdu::Data(header, sdu)) => {
                let mut again = data.to_vec();
                let len = header.emit(sn, &mut again).expect("room");
                assert_eq!(&again[len..], sdu);
                assert_eq!(AmPdu::parse(&again, sn), Ok(AmPdu::Data(header, sdu)));
            }
            Ok(AmPdu::Status(status)) => {
                let nacks: Vec<Nack> = status.nacks().collect();
                let mut again = Vec::new();
                let mut writer = StatusWriter::new(sn, usize::MAX, &mut again).expect("room");
                assert!(nacks.iter().all(|nack| writer.push(*nack)));
                // A range of 1 may be written out or not.
                assert!(writer.finish(status.ack_sn) <= data.len());
                let Ok(AmPdu::Status(reread)) = AmPdu::parse(&again, sn) else { panic!("not a STATUS PDU") };
                assert_eq!((reread.ack_sn, reread.nacks().collect()), (status.ack_sn, nacks));
            }
            Err(_) => {}
        }
    }
});
