//! From when to when a certificate holds (RFC 5280 §4.1.2.5), for the operator: a library of TLS tells clients only.
//!
//! ```text
//!  Certificate { tbsCertificate { [0] version, serial, signature, issuer, validity { notBefore, notAfter }, … }, … }   (DER)
//! ```

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// From when to when, as RFC 3339 writes times in UTC: so they can be compared as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validity {
    not_before: String,
    not_after: String,
}

impl Validity {
    /// Of a certificate in DER; `None`: it is none that is understood.
    pub fn of(der: &[u8]) -> Option<Self> {
        let (certificate, _) = value(der, SEQUENCE)?;
        let (mut rest, _) = value(certificate, SEQUENCE)?;
        if let Some((_, after)) = value(rest, VERSION) {
            rest = after;
        }
        for tag in [INTEGER, SEQUENCE, SEQUENCE] {
            (_, rest) = value(rest, tag)?;
        }
        let (validity, _) = value(rest, SEQUENCE)?;
        let (not_before, rest) = time(validity)?;
        let (not_after, _) = time(rest)?;
        Some(Self { not_before, not_after })
    }

    /// Why clients refuse it at this time, in RFC 3339.
    pub fn trouble(&self, now: &str) -> Option<String> {
        if now > self.not_after.as_str() {
            Some(format!("it was good until {}: renew it", self.not_after))
        } else if now < self.not_before.as_str() {
            Some(format!("it is good from {} on, and this machine's clock says {now}", self.not_before))
        } else {
            None
        }
    }
}

/// What is in the element at the front, if that has this tag; and what follows it.
fn value(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = der.split_first()?;
    let (&length, mut rest) = rest.split_first()?;
    let mut length = usize::from(length);
    if length >= 0x80 {
        let (bytes, after) = rest.split_at_checked(length - 0x80).filter(|(bytes, _)| bytes.len() <= 4)?;
        length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        rest = after;
    }
    rest.split_at_checked(length).filter(|_| first == tag)
}

/// A time, and what follows it: YYMMDDhhmmssZ until 2049, YYYYMMDDhhmmssZ from then on.
fn time(der: &[u8]) -> Option<(String, &[u8])> {
    let (text, rest, century) = match value(der, UTC_TIME) {
        Some((text, rest)) => (text, rest, if text.first()? < &b'5' { "20" } else { "19" }),
        None => value(der, GENERALIZED_TIME).map(|(text, rest)| (text, rest, ""))?,
    };
    let text = format!("{century}{}", std::str::from_utf8(text).ok()?);
    let digits = text.strip_suffix('Z').filter(|digits| digits.len() == 14)?;
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let part = |from: usize, to: usize| &digits[from..to];
    let (date, at) = ((part(0, 4), part(4, 6), part(6, 8)), (part(8, 10), part(10, 12), part(12, 14)));
    Some((format!("{}-{}-{}T{}:{}:{}Z", date.0, date.1, date.2, at.0, at.1, at.2), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn certificate(from: i32, to: i32) -> Vec<u8> {
        let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (parameters.not_before, parameters.not_after) =
            (rcgen::date_time_ymd(from, 3, 4), rcgen::date_time_ymd(to, 5, 6));
        parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn a_certificate_says_from_when_to_when_it_holds() {
        for (from, to) in [(1975, 2049), (2026, 2027), (2049, 2050), (2050, 4096)] {
            let validity = Validity::of(&certificate(from, to)).unwrap();
            let expected = Validity {
                not_before: format!("{from}-03-04T00:00:00Z"),
                not_after: format!("{to}-05-06T00:00:00Z"),
            };
            assert_eq!(validity, expected);
            assert_eq!(validity.trouble(&format!("{to}-05-06T00:00:00Z")), None);
            assert!(validity.trouble(&format!("{to}-05-06T00:00:01Z")).unwrap().contains("renew it"));
            assert_eq!(validity.trouble(&format!("{from}-03-04T00:00:00Z")), None);
            assert!(validity.trouble(&format!("{from}-03-03T23:59:59Z")).unwrap().contains("clock"));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_understood_or_not(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
            let mut der = certificate(2026, 2027);
            let (at, cut) = (at.index(der.len()), cut.index(der.len()));
            der[at] = byte;
            let _ = Validity::of(&der);
            der.truncate(cut);
            let _ = Validity::of(&der);
        }
    }
}
