import pytest
import trio
import trio.testing

from jepsen.clients.json_lines import JsonLines, LineError


async def pair() -> tuple[JsonLines, trio.SocketStream]:
    one, other = trio.socket.socketpair()
    return JsonLines(trio.SocketStream(one)), trio.SocketStream(other)


async def test_a_question_and_its_answer_in_pieces() -> None:
    lines, other = await pair()
    async with lines, other, trio.open_nursery() as nursery:

        async def answer() -> None:
            assert await other.receive_some() == b'{"f":"read"}\n'
            for piece in (b'{"records"', b':[1]}\n{"more"', b":2}\n"):
                await other.send_all(piece)

        nursery.start_soon(answer)
        assert await lines.ask({"f": "read"}) == {"records": [1]}
        assert await lines.receive() == {"more": 2}


async def test_a_hang_up_and_a_line_that_is_no_json_are_told() -> None:
    lines, other = await pair()
    async with lines:
        await other.send_all(b"what?\n")
        with pytest.raises(LineError, match="no JSON"):
            await lines.receive()
        await other.aclose()
        with pytest.raises(LineError, match="hung up"):
            await lines.receive()
