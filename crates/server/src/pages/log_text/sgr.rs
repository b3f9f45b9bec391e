//! Colours and weights that a program sets by escape sequences (SGR), as classes. There are 16 colours, each readable in light and in dark;
//! those of 256 and of 24 bits become the nearest of them.

/// Bytes of sequences that are kept when a line is replaced: enough for any style, too few to fill a line.
const KEPT_BYTES: usize = 256;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Style {
    ink: Option<u8>,
    ground: Option<u8>,
    bold: bool,
    dim: bool,
    italic: bool,
    underlined: bool,
    struck: bool,
    reversed: bool,
}

impl Style {
    /// `parameters` are what stands between `ESC [` and `m`. What is not known is passed over.
    pub(super) fn apply(&mut self, parameters: &str) {
        let mut numbers = parameters.split([';', ':']).map(|number| number.parse::<u16>().unwrap_or(0));
        while let Some(number) = numbers.next() {
            match number {
                0 => *self = Style::default(),
                1 => self.bold = true,
                2 => self.dim = true,
                3 => self.italic = true,
                4 => self.underlined = true,
                7 => self.reversed = true,
                9 => self.struck = true,
                22 => (self.bold, self.dim) = (false, false),
                23 => self.italic = false,
                24 => self.underlined = false,
                27 => self.reversed = false,
                29 => self.struck = false,
                30..=37 => self.ink = Some((number - 30) as u8),
                38 => self.ink = colour(&mut numbers).or(self.ink),
                39 => self.ink = None,
                40..=47 => self.ground = Some((number - 40) as u8),
                48 => self.ground = colour(&mut numbers).or(self.ground),
                49 => self.ground = None,
                90..=97 => self.ink = Some((number - 82) as u8),
                100..=107 => self.ground = Some((number - 92) as u8),
                _ => {}
            }
        }
    }

    /// The classes of a span, or none for plain text. On a coloured ground the stylesheet chooses an ink that is readable there.
    pub(super) fn classes(self) -> Option<String> {
        if self == Style::default() {
            return None;
        }
        let (ink, ground) = if self.reversed { (self.ground, self.ink) } else { (self.ink, self.ground) };
        let mut classes: Vec<String> = Vec::new();
        classes.extend(ink.map(|colour| format!("ink{colour}")));
        classes.extend(ground.map(|colour| format!("ground{colour}")));
        let flags = [
            (self.bold, "bold"),
            (self.dim, "dim"),
            (self.italic, "italic"),
            (self.underlined, "underlined"),
            (self.struck, "struck"),
            (self.reversed && ground.is_none(), "reversed"),
        ];
        classes.extend(flags.into_iter().filter(|(set, _)| *set).map(|(_, name)| name.to_owned()));
        Some(classes.join(" "))
    }
}

/// What follows 38 or 48: `5;N`, or `2;R;G;B`.
fn colour(numbers: &mut impl Iterator<Item = u16>) -> Option<u8> {
    match numbers.next()? {
        5 => Some(of_256(numbers.next()?)),
        2 => {
            let (red, green, blue) = (numbers.next()?, numbers.next()?, numbers.next()?);
            Some(nearest(red.min(255), green.min(255), blue.min(255)))
        }
        _ => None,
    }
}

/// 16 named ones, a cube of 6 × 6 × 6, and 24 greys.
fn of_256(number: u16) -> u8 {
    let level = |step: u16| if step == 0 { 0 } else { 55 + step * 40 };
    match number {
        0..=15 => number as u8,
        16..=231 => {
            let cube = number - 16;
            nearest(level(cube / 36), level(cube / 6 % 6), level(cube % 6))
        }
        _ => {
            let grey = (8 + number.min(255).saturating_sub(232) * 10).min(255);
            nearest(grey, grey, grey)
        }
    }
}

/// As terminals have them.
const PALETTE: [(i32, i32, i32); 16] = [
    (0, 0, 0),
    (205, 0, 0),
    (0, 205, 0),
    (205, 205, 0),
    (0, 0, 238),
    (205, 0, 205),
    (0, 205, 205),
    (229, 229, 229),
    (127, 127, 127),
    (255, 0, 0),
    (0, 255, 0),
    (255, 255, 0),
    (92, 92, 255),
    (255, 0, 255),
    (0, 255, 255),
    (255, 255, 255),
];

fn nearest(red: u16, green: u16, blue: u16) -> u8 {
    let distance = |(r, g, b): &(i32, i32, i32)| {
        let square = |a: i32, b: u16| (a - i32::from(b)).pow(2);
        square(*r, red) + square(*g, green) + square(*b, blue)
    };
    let by_distance = PALETTE.iter().enumerate().min_by_key(|(_, colour)| distance(colour));
    by_distance.map_or(0, |(number, _)| number as u8)
}

/// The sequences that set colours in a piece of a line, without its text. The newest ones if there are many.
pub(super) fn sequences(bytes: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    for (at, _) in bytes.windows(2).enumerate().filter(|(_, pair)| *pair == b"\x1b[") {
        let parameters = bytes[at + 2..].iter().take_while(|byte| matches!(byte, b'0'..=b';')).count();
        let end = at + 2 + parameters;
        if bytes.get(end) == Some(&b'm') && parameters < KEPT_BYTES / 2 {
            kept.extend_from_slice(&bytes[at..=end]);
        }
    }
    while kept.len() > KEPT_BYTES {
        let next = kept.iter().skip(1).position(|byte| *byte == 0x1b).map_or(kept.len(), |at| at + 1);
        kept.drain(..next);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_become_classes() {
        let check = |parameters: &str, classes: Option<&str>| {
            let mut style = Style::default();
            style.apply(parameters);
            assert_eq!(style.classes().as_deref(), classes, "{parameters}");
        };
        check("", None);
        check("31", Some("ink1"));
        check("1;4;93;44", Some("ink11 ground4 bold underlined"));
        check("31;0", None);
        check("38;5;196", Some("ink9"));
        check("38;5;255", Some("ink7"));
        check("48;2;0;200;10", Some("ground2"));
        check("38:2:0:0:250", Some("ink4"));
        check("38;2;1", None);
        check("38;5", None);
        check("7", Some("reversed"));
        check("7;32", Some("ground2"));
        check("8;5;99999999999;-4;x", None);
    }

    #[test]
    fn every_number_of_256_has_a_colour() {
        assert!((0..=300).all(|number| of_256(number) < 16));
    }

    #[test]
    fn what_is_kept_of_a_replaced_line_is_bounded() {
        assert_eq!(sequences(b"a\x1b[31mb\x1b[2Kc\x1b[1m"), b"\x1b[31m\x1b[1m");
        let kept = sequences(&b"\x1b[31m.".repeat(9_000));
        assert!(kept.len() <= KEPT_BYTES && kept.ends_with(b"\x1b[31m") && kept.starts_with(b"\x1b["));
    }
}
