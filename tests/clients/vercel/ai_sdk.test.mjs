// The Vercel AI SDK, through its providers for OpenAI-compatible servers, for OpenAI and for Anthropic.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, Output, streamText, tool } from 'ai';
import { z } from 'zod';

const baseURL = `${process.env.MUXFLEET_CLIENTS_URL}/v1`;
const apiKey = process.env.MUXFLEET_CLIENTS_KEY;
const model = 'smollm2';
const prompt = 'What is the capital of France?';
const City = z.object({ city: z.string().max(20), country: z.string().max(20) });
const weather = tool({
  description: 'The weather in a city',
  inputSchema: z.object({ city: z.string().max(20) }),
  execute: async ({ city }) => `Sunny in ${city}.`,
});

test('the provider for compatible servers answers with usage', async () => {
  const muxfleet = createOpenAICompatible({ name: 'muxfleet', baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true });
  const answer = await generateText({ model: muxfleet(model), prompt: 'What is the capital of France?', temperature: 0 });

  assert.match(answer.text, /Paris/);
  assert.equal(answer.finishReason, 'stop');
  assert.equal(answer.usage.totalTokens, answer.usage.inputTokens + answer.usage.outputTokens);
});

const openai = createOpenAI({ baseURL, apiKey });
const anthropic = createAnthropic({ baseURL, apiKey });
const compatible = createOpenAICompatible({ name: 'muxfleet', baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true });
const spoken = {
  compatible: compatible(model),
  chat: openai.chat(model),
  responses: openai(model),
  anthropic: anthropic(model),
};

for (const [name, model] of Object.entries(spoken)) {
  const asked = { model, temperature: 0, maxOutputTokens: 64, maxRetries: 0 };

  test(`${name}: pieces of a stream join to the whole`, async () => {
    const result = streamText({ ...asked, prompt });
    const pieces = [];
    for await (const piece of result.textStream) pieces.push(piece);

    assert.ok(pieces.length > 1);
    assert.equal(pieces.join(''), await result.text);
    assert.match(await result.text, /Paris/);
    assert.equal(await result.finishReason, 'stop');
    assert.ok((await result.usage).outputTokens > 1);
  });

  test(`${name}: an object is of its schema, at once and from a stream`, async () => {
    const output = Output.object({ schema: City });
    const answer = await generateText({ ...asked, prompt, output });
    const result = streamText({ ...asked, prompt, output });
    let last;
    for await (const partial of result.partialOutputStream) last = partial;

    City.parse(answer.output);
    City.parse(last);
  });

  test(`${name}: a tool is run and its result goes back`, async () => {
    const answer = await generateText({
      ...asked,
      prompt,
      tools: { weather },
      stopWhen: ({ steps }) => steps.length === 2,
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? { type: 'tool', toolName: 'weather' } : 'none' }),
    });

    assert.equal(answer.steps.length, 2);
    assert.equal(answer.steps[0].finishReason, 'tool-calls');
    assert.match(answer.steps[0].toolResults[0].output, /^Sunny in /);
    assert.ok(answer.steps[1].text.length > 0);
  });

  test(`${name}: a tool's arguments come in a stream`, async () => {
    const toolChoice = { type: 'tool', toolName: 'weather' };
    const result = streamText({ ...asked, prompt, tools: { weather }, toolChoice });
    const kinds = [];
    for await (const part of result.fullStream) kinds.push(part.type);

    assert.deepEqual(kinds.filter((kind) => kind.startsWith('tool-')).at(-1), 'tool-result');
    assert.deepEqual((await result.toolCalls).map((call) => Object.keys(call.input)), [['city']]);
  });

  test(`${name}: a second turn goes on with the first, whichever gateway answers`, async () => {
    const messages = [{ role: 'user', content: prompt }];
    const first = await generateText({ ...asked, messages });
    messages.push(...first.response.messages, { role: 'user', content: 'And of Italy?' });
    for (let turn = 0; turn < 4; turn += 1) {
      const second = await generateText({ ...asked, messages });
      assert.ok(second.usage.inputTokens > first.usage.inputTokens + 8);
    }
  });
}
