"""``createClient(url, key)`` of supabase-js for storage, unconfigured: every method that there is."""

from __future__ import annotations

from pathlib import Path

import jwt
import pytest_twisted
from twisted.internet.threads import deferToThread

from tests.live.npm import install, run_node
from tests.live.sql import run_sql
from tests.live.tables.service import Tables, tables
from tests.pictures import png

__all__ = ["tables"]

POLICIES = """
create policy "own folder" on storage.objects for all to authenticated
  using (bucket = 'files' and (storage.folder(key))[1] = (select auth.uid())::text)
  with check (bucket = 'files' and (storage.folder(key))[1] = (select auth.uid())::text);
"""
PROGRAM = """
import { createClient } from '@supabase/supabase-js'
import { readFileSync } from 'node:fs'
import * as tus from 'tus-js-client'
import ws from 'ws'

globalThis.WebSocket ??= ws  // Node has one since version 22
const [url, service, anon, token, user, picture] = process.argv.slice(2)
const admin = createClient(url, service).storage
const mine = createClient(url, anon, { accessToken: async () => token }).storage
const anybody = createClient(url, anon).storage
const out = {}
const failed = ({ error }) => error && [error.statusCode, error.message]

// Buckets.
out.made = (await admin.createBucket('files', { public: false, fileSizeLimit: '1MB' })).data
out.public = (await admin.createBucket('pages', { public: true, allowedMimeTypes: ['text/*', 'image/*'] })).data
out.again = failed(await admin.createBucket('files', { public: false }))
out.bucket = (({ id, public: shown, file_size_limit }) => [id, shown, file_size_limit])(
  (await admin.getBucket('files')).data)
out.buckets = (await admin.listBuckets()).data.map(({ name }) => name).filter(name => name.length === 5)
out.updated = (await admin.updateBucket('pages', { public: true, fileSizeLimit: 100000 })).data
out.missing = failed(await admin.getBucket('none'))
out.notTheirs = [failed(await mine.createBucket('x', { public: true })), (await mine.listBuckets()).data]

// Uploads, in every form.
const files = mine.from('files'), path = `${user}/a dir/é.txt`
const uploaded = await files.upload(path, 'hello', { cacheControl: '60', metadata: { album: 'trip' } })
out.upload = [uploaded.data.path === path, uploaded.data.fullPath === `files/${path}`, uploaded.data.id.length]
out.duplicate = failed(await files.upload(path, 'again'))
out.upsert = (await files.upload(path, 'hello!', { upsert: true, metadata: { album: 'trip' } })).error
out.blob = (await files.upload(`${user}/blob`, new Blob(['blob'], { type: 'image/png' }))).error
const form = new FormData()
form.append('whatever', new Blob(['form']), 'f.txt')
out.form = (await files.upload(`${user}/form`, form)).error
out.bytes = (await files.upload(`${user}/bytes`, new Uint8Array([1, 2, 3]), { contentType: 'a/b' })).error
out.update = (await files.update(`${user}/bytes`, Buffer.from('four'))).error
out.elsewhere = failed(await files.upload('others/a', 'x'))
out.anybody = failed(await anybody.from('files').upload(path, 'x', { upsert: true }))
out.large = failed(await files.upload(`${user}/large`, new Uint8Array(1000001)))
out.type = failed(await admin.from('pages').upload('x', 'x', { contentType: 'application/pdf' }))

// Downloads.
out.download = await (await files.download(path)).data.text()
out.stream = await new Response((await files.download(path).asStream()).data).text()
out.hidden = failed(await anybody.from('files').download(path))
const info = (await files.info(path)).data
out.info = [info.name === path, info.size, info.contentType, info.cacheControl, info.metadata, info.bucketId]
out.exists = [(await files.exists(path)).data, (await files.exists(`${user}/none`)).data]

// Listings.
const names = ({ data }) => data.map(({ name, id }) => [name, id !== null])
out.list = names(await files.list(user))
out.listSorted = names(await files.list(user, {
  limit: 2, offset: 1, sortBy: { column: 'created_at', order: 'desc' }, search: 'b' }))
out.listNothing = (await anybody.from('files').list('')).data
const pages = []
for (let cursor, more = true; more;) {
  const page = (await files.listV2({ prefix: `${user}/`, limit: 1, with_delimiter: true, cursor })).data
  pages.push(...page.folders, ...page.objects)
  more = page.hasNext
  cursor = page.nextCursor
}
out.listV2 = pages.map(({ name }) => name.slice(user.length + 1))

// Moves, copies, deletions.
out.move = (await files.move(`${user}/form`, `${user}/moved`)).data.message
out.taken = failed(await files.move(`${user}/moved`, `${user}/blob`))
out.copy = (await files.copy(`${user}/moved`, `${user}/copied`)).data.path === `files/${user}/copied`
out.across = (await admin.from('files').copy(path, 'page.txt', { destinationBucket: 'pages' })).data
const copied = `${user}/copied`
out.remove = (await files.remove([copied, `${user}/none`])).data.map(({ name }) => name === copied)

// Addresses that need no key.
const fetched = async address => { const r = await fetch(address); return [r.status, await r.text()] }
out.publicUrl = await fetched(anybody.from('pages').getPublicUrl('page.txt').data.publicUrl)
out.notPublic = (await fetched(anybody.from('files').getPublicUrl(path).data.publicUrl))[0]
const signed = (await files.createSignedUrl(path, 3600, { download: 'name.txt' })).data.signedUrl
const opened = await fetch(signed)
const again = []  // whoever asks again gets the same address, but for one time in six minutes
for (const _ of [1, 2]) again.push((await files.createSignedUrl(path, 3600, { download: 'name.txt' })).data.signedUrl)
out.signed = [opened.status, await opened.text(), opened.headers.get('content-disposition').split(';')[1],
  again[0] === signed || again[0] === again[1]]
out.several = (await files.createSignedUrls([path, 'none'], 60)).data.map(({ error }) => error === null)
out.unsigned = failed(await anybody.from('files').createSignedUrl(path, 60))
const upload = (await files.createSignedUploadUrl(`${user}/by-address`)).data
const strangers = anybody.from('files')
out.signedUpload = (await strangers.uploadToSignedUrl(upload.path, upload.token, 'by address')).error
out.twice = failed(await strangers.uploadToSignedUrl(upload.path, upload.token, 'again'))
out.byAddress = await (await files.download(`${user}/by-address`)).data.text()

// Pictures.
await files.upload(`${user}/p.png`, readFileSync(picture), { contentType: 'image/png' })
const size = async blob => {
  const view = new DataView(await blob.arrayBuffer())
  return [blob.type, view.getUint32(16), view.getUint32(20)]
}
const transform = { width: 30, height: 20, format: 'origin' }
out.picture = await size((await files.download(`${user}/p.png`, { transform })).data)
const small = (await files.createSignedUrl(`${user}/p.png`, 60, { transform })).data.signedUrl
out.signedPicture = await size(await (await fetch(small)).blob())

// Resumable uploads, as those docs have them.
const big = Buffer.alloc(300000, 'resumable ')
await new Promise((resolve, reject) => new tus.Upload(big, {
  endpoint: `${url}/storage/v1/upload/resumable`,
  headers: { authorization: `Bearer ${token}`, apikey: anon, 'x-upsert': 'true' },
  uploadDataDuringCreation: true,
  removeFingerprintOnSuccess: true,
  metadata: { bucketName: 'files', objectName: `${user}/big`, contentType: 'text/plain', cacheControl: '3600' },
  chunkSize: 100000,
  onError: reject,
  onSuccess: resolve,
}).start())
out.resumable = (await files.download(`${user}/big`)).data.size

// The same by a signed address, by somebody who is not signed in and has no key.
const address = (await files.createSignedUploadUrl(`${user}/big`, { upsert: true })).data
await new Promise((resolve, reject) => new tus.Upload(big.subarray(0, 250000), {
  endpoint: `${url}/storage/v1/upload/resumable/sign`,
  headers: { 'x-signature': address.token },
  removeFingerprintOnSuccess: true,
  metadata: { bucketName: 'files', objectName: address.path, contentType: 'text/plain', cacheControl: '3600' },
  chunkSize: 100000,
  onError: reject,
  onSuccess: resolve,
}).start())
out.resumableSigned = (await files.download(`${user}/big`)).data.size

out.notEmpty = failed(await admin.deleteBucket('files'))
out.emptied = (await admin.emptyBucket('files')).data.message.length > 0
out.deleted = (await admin.deleteBucket('files')).data
process.stdout.write(JSON.stringify(out))
"""
EXISTS, DENIED = ["409", "The resource already exists"], ["403", "new row violates row-level security policy"]
MISSING = ["404", "Object not found"]
SEEN = {
    "made": {"name": "files"},
    "public": {"name": "pages"},
    "again": EXISTS,
    "bucket": ["files", False, 1_000_000],
    "buckets": ["files", "pages"],
    "updated": {"message": "Successfully updated"},
    "missing": ["404", "Bucket not found"],
    "notTheirs": [DENIED, []],
    "upload": [True, True, 36],
    "duplicate": EXISTS,
    "upsert": None,
    "blob": None,
    "form": None,
    "bytes": None,
    "update": None,
    "elsewhere": DENIED,
    "anybody": DENIED,
    "large": ["413", "The object exceeded the maximum allowed size"],
    "type": ["415", "mime type application/pdf is not supported"],
    "download": "hello!",
    "stream": "hello!",
    "hidden": MISSING,
    "info": [True, 6, "text/plain;charset=UTF-8", "max-age=3600", {"album": "trip"}, "files"],
    "exists": [True, False],
    "list": [["a dir", False], ["blob", True], ["bytes", True], ["form", True]],
    "listSorted": [["blob", True]],
    "listNothing": [],
    "listV2": ["a dir/", "blob", "bytes", "form"],
    "move": "Successfully moved",
    "taken": EXISTS,
    "copy": True,
    "across": {"path": "pages/page.txt"},
    "remove": [True],
    "publicUrl": [200, "hello!"],
    "notPublic": 400,
    "signed": [200, "hello!", " filename=name.txt", True],
    "several": [True, False],
    "unsigned": MISSING,
    "signedUpload": None,
    "twice": EXISTS,
    "byAddress": "by address",
    "picture": ["image/png", 30, 20],
    "signedPicture": ["image/png", 30, 20],
    "resumable": 300000,
    "resumableSigned": 250000,
    "notEmpty": ["409", "The bucket you tried to delete is not empty"],
    "emptied": True,
    "deleted": {"message": "Successfully deleted"},
}


@pytest_twisted.ensureDeferred
async def test_supabase_js_stores_files(tables: Tables, tmp_path: Path) -> None:
    run_sql(tables.api.dsn, POLICIES)
    file = tmp_path / "p.png"
    file.write_bytes(png(1, 2, 3, 60))

    def session() -> None:
        install(tmp_path, "@supabase/supabase-js@2", "ws@8", "tus-js-client@4.3.1")
        api = tables.api
        user = jwt.decode(tables.token, options={"verify_signature": False})["sub"]
        for url in (api.base_url, f"{api.base_url}/dev/db/main"):
            seen = run_node(
                tmp_path, PROGRAM, url, api.service_key, api.anon_key, tables.token, user, str(file)
            )
            assert seen == SEEN
            # The second round makes the same buckets.
            run_node(tmp_path, CLEAR, url, api.service_key)

    await deferToThread(session)


# What of the table of methods in docs/supabase-storage.rst the program above leaves out.
MORE_POLICIES = """
create policy "own shelf" on storage.objects for all to authenticated
  using (bucket in ('shelf', 'show') and (storage.folder(key))[1] = (select auth.uid())::text);
create policy "shared shelf" on storage.objects for select to authenticated
  using ((storage.folder(key))[1] = 'shared');
"""
MORE = """
import { createClient } from '@supabase/supabase-js'
import { readFileSync } from 'node:fs'
import ws from 'ws'

globalThis.WebSocket ??= ws  // Node has one since version 22
const [url, service, anon, token, user, picture] = process.argv.slice(2)
const admin = createClient(url, service).storage
const mine = createClient(url, anon, { accessToken: async () => token }).storage
const out = {}
const failed = ({ error }) => error && [error.statusCode, error.message.slice(0, 40)]

// Buckets.
await admin.createBucket('shelf', { public: false, fileSizeLimit: '20MB' })
await admin.createBucket('show', { public: true })
const bucket = (await admin.getBucket('shelf')).data
out.bucket = [bucket.owner, bucket.file_size_limit]
await admin.updateBucket('shelf', { public: false, fileSizeLimit: 0 })
out.unlimited = (await admin.getBucket('shelf')).data.file_size_limit
out.page = (await admin.listBuckets({ search: 'sh', limit: 1, offset: 1, sortColumn: 'name', sortOrder: 'desc' }))
  .data.map(({ name }) => name)

// Uploads of streams, and what objects say of themselves.
const files = mine.from('shelf')
const stream = new Blob(['streamed']).stream()
out.stream = (await files.upload(`${user}/stream`, stream, { contentType: 'text/plain', duplex: 'half' })).error
const form = new FormData()
form.append('cacheControl', '7')
form.append('metadata', '{"album": "form"}')
form.append('', new Blob(['form'], { type: 'text/csv' }), 'x.csv')
out.form = (await files.upload(`${user}/form`, form)).error
const info = (await files.info(`${user}/form`)).data
out.info = [info.contentType, info.cacheControl, info.metadata]
const [listed] = (await files.list(user, { search: 'form' })).data
out.listed = [listed.last_accessed_at === listed.created_at, listed.metadata.size, listed.metadata.cacheControl]
await files.upload(`${user}/folder/a`, 'a')
const byTime = await files.list(user, { sortBy: { column: 'last_accessed_at', order: 'desc' } })
out.byTime = byTime.data.map(({ name }) => name)
const backwards = await files.listV2({ prefix: `${user}/`, sortBy: { column: 'created_at', order: 'desc' } })
out.listV2 = backwards.data.objects.map(({ name }) => name.slice(user.length + 1))

// Into another bucket, with what the application keeps with an object.
const show = mine.from('show')
out.moved = failed(await files.move(`${user}/stream`, `${user}/stream`, { destinationBucket: 'show' }))
out.left = (await files.exists(`${user}/stream`)).data
out.arrived = await (await show.download(`${user}/stream`)).data.text()
out.copied = failed(await files.copy(`${user}/form`, `${user}/copy`, { destinationBucket: 'show' }))
out.copiedInfo = (await show.info(`${user}/copy`)).data.metadata
out.copyTaken = failed(await files.copy(`${user}/form`, `${user}/copy`, { destinationBucket: 'show' }))

// What may be seen and not deleted.
await admin.from('shelf').upload('shared/a', 'a')
out.seen = await (await files.download('shared/a')).data.text()
out.denied = failed(await files.remove([`${user}/form`, 'shared/a']))
out.kept = (await files.exists(`${user}/form`)).data

// Ranges, conditions and names, where browsers ask.
const address = show.getPublicUrl(`${user}/stream`, { download: 'name.txt' }).data.publicUrl
const first = await fetch(address)
const part = await fetch(address, { headers: { range: 'bytes=0-3' } })
const again = await fetch(address, { headers: { 'if-none-match': first.headers.get('etag') } })
out.ranges = [first.headers.get('content-disposition'), part.status, await part.text(), again.status]
const inBrackets = (await files.createSignedUrls([`${user}/form`], 60, { download: true })).data[0].signedUrl
out.several = (await fetch(inBrackets)).headers.get('content-disposition').split(';')[0]

// Pictures.
const png = readFileSync(picture)
await show.upload(`${user}/as-text.png`, png)
await show.upload(`${user}/icon.svg`, '<svg xmlns="http://www.w3.org/2000/svg"/>', { contentType: 'image/svg+xml' })
const shown = async (name, transform, headers = {}) => {
  const there = await fetch(show.getPublicUrl(`${user}/${name}`, { transform }).data.publicUrl, { headers })
  return [there.status, there.headers.get('content-type'), (await there.arrayBuffer()).byteLength > 0]
}
out.public = await shown('as-text.png', { width: 20, height: 10, resize: 'contain', quality: 50 })
out.accepted = await shown('as-text.png', { width: 20 }, { accept: 'image/webp' })
out.origin = await shown('as-text.png', { width: 20, format: 'origin' }, { accept: 'image/webp' })
out.stretched = (await shown('as-text.png', { width: 20, height: 10, resize: 'fill' }))[0]
out.svg = await shown('icon.svg', { width: 20 })

// What is not there.
out.none = []
for (const asked of [
  () => admin.from('shelf').purgeCache('x'), () => admin.purgeBucketCache('shelf'),
  () => admin.vectors.listBuckets(), () => admin.analytics.listBuckets()]) {
  const { error } = await asked()
  out.none.push(error.statusCode ?? error.status)
}
const s3 = await fetch(`${url}/storage/v1/s3/shelf`, { headers: { apikey: service } })
out.none.push((await s3.json()).statusCode)

for (const name of ['shelf', 'show']) {
  await admin.emptyBucket(name)
  await admin.deleteBucket(name)
}
process.stdout.write(JSON.stringify(out))
"""
MORE_SEEN = {
    "bucket": ["", 20_000_000],
    "unlimited": None,
    "page": ["shelf"],
    "stream": None,
    "form": None,
    "info": ["text/csv", "max-age=7", {"album": "form"}],
    "listed": [True, 4, "max-age=7"],
    "byTime": ["folder", "form", "stream"],
    "listV2": ["folder/a", "form", "stream"],
    "moved": None,
    "left": False,
    "arrived": "streamed",
    "copied": None,
    "copiedInfo": {"album": "form"},
    "copyTaken": EXISTS,
    "seen": "a",
    "denied": ["403", "new row violates row-level security poli"],
    "kept": True,
    "ranges": ["attachment; filename=name.txt; filename*=UTF-8''name.txt", 206, "stre", 304],
    "several": "attachment",
    "public": [200, "image/png", True],
    "accepted": [200, "image/webp", True],
    "origin": [200, "image/png", True],
    "stretched": 400,
    "svg": [200, "image/svg+xml", True],
    "none": ["404", "404", "404", "404", "404"],
}


@pytest_twisted.ensureDeferred
async def test_every_other_line_of_the_table_of_methods(tables: Tables, tmp_path: Path) -> None:
    run_sql(tables.api.dsn, MORE_POLICIES)
    file = tmp_path / "p.png"
    file.write_bytes(png(1, 2, 3, 60))

    def session() -> None:
        install(tmp_path, "@supabase/supabase-js@2", "ws@8")
        api = tables.api
        user = jwt.decode(tables.token, options={"verify_signature": False})["sub"]
        args = (api.base_url, api.service_key, api.anon_key, tables.token, user, str(file))
        assert run_node(tmp_path, MORE, *args) == MORE_SEEN

    await deferToThread(session)


CLEAR = """
import { createClient } from '@supabase/supabase-js'
import ws from 'ws'

globalThis.WebSocket ??= ws
const { storage } = createClient(...process.argv.slice(2))
await storage.emptyBucket('pages')
process.stdout.write(JSON.stringify((await storage.deleteBucket('pages')).data))
"""
