"""The built-in retain lists: large enough, clean, sorted, without duplicates or overlaps, true to
the paper's table.
"""

import itertools
import re
import unicodedata
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "speed_ops" / "text" / "retain_sets"
MINIMUM = {
    "artists": 1200,
    "characters": 800,
    "people": 400,
    "objects": 800,
    "styles": 200,
    "scenes": 500,
}
MAX_BYTES = 300_000

# Letters that Unicode does not decompose into a base letter and a mark.
UNDECOMPOSED = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i", "ß": "ss"}
)

# "Retain Set" and "Erasure Set" of the SPEED paper's multi-concept experiment, with the paper's own
# capitals.
PAPER_RETAINED = """
Aaron Paul, Alec Baldwin, Amanda Seyfried, Amy Poehler, Amy Schumer, Amy Winehouse, Andy Samberg,
Aretha Franklin, Avril Lavigne, Aziz Ansari, Barry Manilow, Ben Affleck, Ben Stiller, Benicio Del
Toro, Bette Midler, Betty White, Bill Murray, Bill Nye, Britney Spears, Brittany Snow, Bruce Lee,
Burt Reynolds, Charles Manson, Christie Brinkley, Christina Hendricks, Clint Eastwood, Countess
Vaughn, Dakota Johnson, Dane Dehaan, David Bowie, David Tennant, Denise Richards, Doris Day, Dr Dre,
Elizabeth Taylor, Emma Roberts, Fred Rogers, Gal Gadot, George Bush, George Takei, Gillian Anderson,
Gordon Ramsey, Halle Berry, Harry Dean Stanton, Harry Styles, Hayley Atwell, Heath Ledger, Henry
Cavill, Jackie Chan, Jada Pinkett Smith, James Garner, Jason Statham, Jeff Bridges, Jennifer
Connelly, Jensen Ackles, Jim Morrison, Jimmy Carter, Joan Rivers, John Lennon, Johnny Cash, Jon
Hamm, Judy Garland, Julianne Moore, Justin Bieber, Kaley Cuoco, Kate Upton, Keanu Reeves, Kim Jong
Un, Kirsten Dunst, Kristen Stewart, Krysten Ritter, Lana Del Rey, Leslie Jones, Lily Collins,
Lindsay Lohan, Liv Tyler, Lizzy Caplan, Maggie Gyllenhaal, Matt Damon, Matt Smith, Matthew
Mcconaughey, Maya Angelou, Megan Fox, Mel Gibson, Melanie Griffith, Michael Cera, Michael Ealy,
Natalie Portman, Neil Degrasse Tyson, Niall Horan, Patrick Stewart, Paul Rudd, Paul Wesley, Pierce
Brosnan, Prince, Queen Elizabeth, Rachel Dratch, Rachel Mcadams, Reba Mcentire, Robert De Niro
"""
PAPER_ERASED = """
Adam Driver, Adriana Lima, Amber Heard, Amy Adams, Andrew Garfield, Angelina Jolie, Anjelica Huston,
Anna Faris, Anna Kendrick, Anne Hathaway, Arnold Schwarzenegger, Barack Obama, Beth Behrs, Bill
Clinton, Bob Dylan, Bob Marley, Bradley Cooper, Bruce Willis, Bryan Cranston, Cameron Diaz, Channing
Tatum, Charlie Sheen, Charlize Theron, Chris Evans, Chris Hemsworth, Chris Pine, Chuck Norris,
Courteney Cox, Demi Lovato, Drake, Drew Barrymore, Dwayne Johnson, Ed Sheeran, Elon Musk, Elvis
Presley, Emma Stone, Frida Kahlo, George Clooney, Glenn Close, Gwyneth Paltrow, Harrison Ford,
Hillary Clinton, Hugh Jackman, Idris Elba, Jake Gyllenhaal, James Franco, Jared Leto, Jason Momoa,
Jennifer Aniston, Jennifer Lawrence, Jennifer Lopez, Jeremy Renner, Jessica Biel, Jessica Chastain,
John Oliver, John Wayne, Johnny Depp, Julianne Hough, Justin Timberlake, Kate Bosworth, Kate
Winslet, Leonardo Dicaprio, Margot Robbie, Mariah Carey, Melania Trump, Meryl Streep, Mick Jagger,
Mila Kunis, Milla Jovovich, Morgan Freeman, Nick Jonas, Nicolas Cage, Nicole Kidman, Octavia
Spencer, Olivia Wilde, Oprah Winfrey, Paul Mccartney, Paul Walker, Peter Dinklage, Philip Seymour
Hoffman, Reese Witherspoon, Richard Gere, Ricky Gervais, Rihanna, Robin Williams, Ronald Reagan,
Ryan Gosling, Ryan Reynolds, Shia Labeouf, Shirley Temple, Spike Lee, Stan Lee, Theresa May, Tom
Cruise, Tom Hanks, Tom Hardy, Tom Hiddleston, Whoopi Goldberg, Zac Efron, Zayn Malik
"""


def fold(text: str) -> str:
    """Lower case without diacritics: the form the lists are sorted by."""
    decomposed = unicodedata.normalize("NFKD", text.casefold().translate(UNDECOMPOSED))
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))


def identity(name: str) -> str:
    """What two spellings of one name share: letters and digits only, folded."""
    return "".join(letter for letter in fold(name) if letter.isalnum())


def words(name: str) -> tuple[str, ...]:
    """The folded words of a name in any order, so that "Family Given" meets "Given Family"."""
    return tuple(sorted(re.findall(r"\w+", fold(name))))


def repeated(values: list) -> list:
    """The values that occur more than once."""
    return sorted({value for value in values if values.count(value) > 1})


def split_table(text: str) -> list[str]:
    """The names of one of the paper's sets."""
    return [name.strip() for name in text.replace("\n", " ").split(",")]


def read_lines(name: str) -> list[str]:
    """All lines of a list, header included."""
    return (FOLDER / f"{name}.txt").read_bytes().decode("utf-8").split("\n")[:-1]


def read_names(name: str) -> list[str]:
    """The names of a list, without its comments."""
    return [line for line in read_lines(name) if not line.startswith("#")]


every_list = pytest.mark.parametrize("name", MINIMUM)


def test_the_folder_holds_exactly_these_lists() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(MINIMUM)


@every_list
def test_holds_enough_names(name: str) -> None:
    assert len(read_names(name)) >= MINIMUM[name]


@every_list
def test_opens_with_a_short_header_and_its_version(name: str) -> None:
    lines = read_lines(name)
    header = list(itertools.takewhile(lambda line: line.startswith("# "), lines))
    assert 3 <= len(header) <= 6
    assert re.fullmatch(r"# Version \d+\.", header[-1])
    assert not any("#" in line for line in lines[len(header) :])


@every_list
def test_is_plain_utf8_with_unix_line_ends(name: str) -> None:
    content = (FOLDER / f"{name}.txt").read_bytes()
    assert len(content) < MAX_BYTES
    assert not content.startswith(b"\xef\xbb\xbf")
    assert b"\r" not in content
    assert content.endswith(b"\n") and not content.endswith(b"\n\n")


@every_list
def test_every_line_is_clean(name: str) -> None:
    for line in read_names(name):
        assert line and line == " ".join(line.split()), repr(line)
        assert not set(line) & set(',;|"’“”'), line
        assert unicodedata.is_normalized("NFC", line), line
        assert not any(unicodedata.category(letter).startswith("C") for letter in line), repr(line)


@every_list
def test_no_name_stands_twice(name: str) -> None:
    assert repeated([identity(line) for line in read_names(name)]) == []


@pytest.mark.parametrize("name", ["artists", "characters", "people"])
def test_no_name_stands_twice_in_another_word_order(name: str) -> None:
    assert repeated([words(line) for line in read_names(name)]) == []


@every_list
def test_is_sorted_by_the_folded_line(name: str) -> None:
    names = read_names(name)
    assert names == sorted(names, key=lambda line: (fold(line), line))


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(MINIMUM, 2)))
def test_lists_do_not_overlap(first: str, second: str) -> None:
    shared = {identity(name) for name in read_names(first)} & {
        identity(name) for name in read_names(second)
    }
    assert shared == set()


def test_people_and_artists_share_no_name_in_another_word_order() -> None:
    assert {words(name) for name in read_names("people")} & {
        words(name) for name in read_names("artists")
    } == set()


def test_people_hold_every_name_the_paper_retains() -> None:
    retained = split_table(PAPER_RETAINED)
    present = {name.casefold() for name in read_names("people")}
    assert len(retained) == 100
    assert [name for name in retained if name.casefold() not in present] == []


def test_people_hold_no_name_the_paper_erases() -> None:
    erased = split_table(PAPER_ERASED)
    present = {identity(name) for name in read_names("people")}
    assert len(erased) == 100 and not set(erased) & set(split_table(PAPER_RETAINED))
    assert [name for name in erased if identity(name) in present] == []


def test_people_hold_at_least_300_names_beyond_the_paper() -> None:
    retained = {name.casefold() for name in split_table(PAPER_RETAINED)}
    assert len({name.casefold() for name in read_names("people")} - retained) >= 300


def test_objects_are_lower_case() -> None:
    assert [name for name in read_names("objects") if name != name.lower()] == []


def test_scenes_are_two_to_twelve_words() -> None:
    assert [
        caption for caption in read_names("scenes") if not 2 <= len(caption.split()) <= 12
    ] == []


def test_the_checks_see_what_they_look_for() -> None:
    assert (
        identity("Józef  Chełmoński") == identity("jozef chelmonski") != identity("Józef Mehoffer")
    )
    assert identity("Kim Jong-un") == identity("Kim Jong Un")
    assert words("Hokusai Katsushika") == words("Katsushika Hokusai")
    assert repeated(["a", "b", "a"]) == ["a"]
    assert sorted(["Zorn", "Édouard", "eric"], key=fold) == ["Édouard", "eric", "Zorn"]
